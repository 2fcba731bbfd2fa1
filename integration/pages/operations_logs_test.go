package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/operations"
)

func moduleCode(t *testing.T) string {
	t.Helper()
	var code strings.Builder
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "integration" || strings.HasPrefix(entry.Name(), ".g")):
			return fs.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		code.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return code.String()
}

var quoted = regexp.MustCompile("`([^`]+)`")

func TestLogLinesAndCausesOfThePageAreInTheCode(t *testing.T) {
	t.Parallel()
	code := moduleCode(t)
	lines, causes := tableRows(operations.Part(t, "## Log lines")), tableRows(operations.Part(t, "### Causes"))
	if len(lines) < 5 || len(causes) < 5 {
		t.Fatalf("the page has %d log lines and %d causes", len(lines), len(causes))
	}
	for _, row := range lines {
		for _, message := range quoted.FindAllStringSubmatch(row[0], -1) {
			if !strings.Contains(code, strconv.Quote(message[1])) {
				t.Errorf("no log line is %s", message[1])
			}
		}
	}
	for _, row := range causes {
		for _, cause := range quoted.FindAllStringSubmatch(row[0], -1) {
			if !strings.Contains(code, cause[1]) {
				t.Errorf("no error has %q", cause[1])
			}
		}
	}
}
