package redistest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// sideBySide is how many tests run at the same time. Most of them wait for servers,
// timeouts and takeovers, so that one for each core would leave the cores idle.
const sideBySide = 8

// RunSideBySide is m.Run with more tests at the same time than there are cores, unless
// the command has the flag -parallel.
func RunSideBySide(m *testing.M) (status int) {
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == "test.parallel" })
	if !isSet {
		if err := flag.Set("test.parallel", strconv.Itoa(max(sideBySide, runtime.GOMAXPROCS(0)))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}
