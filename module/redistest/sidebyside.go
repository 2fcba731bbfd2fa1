package redistest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// sideBySide is the number of tests that run in parallel. Most tests wait for servers,
// timeouts and takeovers, so one test for each core would leave the cores idle.
const sideBySide = 8

// RunSideBySide calls m.Run with more parallel tests than there are cores, unless the
// command has the flag -parallel.
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
