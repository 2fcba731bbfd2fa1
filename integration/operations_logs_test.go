package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// moduleCode is the code of the module, which a host includes.
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

// The operators' page tells of no log line and of no cause that the module does not
// write.
func TestLogLinesAndCausesOfThePageAreInTheCode(t *testing.T) {
	t.Parallel()
	code := moduleCode(t)
	lines, causes := tableRows(operatorPage(t, "## Log lines")), tableRows(operatorPage(t, "### Causes"))
	if len(lines) < 5 || len(causes) < 5 {
		t.Fatalf("the page tells of %d log lines and %d causes", len(lines), len(causes))
	}
	for _, row := range lines {
		if message := strconv.Quote(strings.Trim(row[0], "`")); !strings.Contains(code, message) {
			t.Errorf("no log line is %s", message)
		}
	}
	for _, row := range causes {
		if cause := strings.Trim(row[0], "`"); !strings.Contains(code, cause) {
			t.Errorf("no error has %q", cause)
		}
	}
}
