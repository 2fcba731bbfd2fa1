package match_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestReadmeShowsTheExample(t *testing.T) {
	t.Parallel()
	page, code := readFile(t, "README.md"), withoutIndent(readFile(t, "example_test.go"))
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(blocks) == 0 {
		t.Fatal("README.md has no Go block")
	}
	for _, block := range blocks {
		if !strings.Contains(code, withoutIndent(block[1])) {
			t.Errorf("not in example_test.go:\n%s", block[1])
		}
	}
	if len(page) > 8<<10 {
		t.Errorf("README.md has %d bytes, more than 8 KB", len(page))
	}
}

func TestReadmeShowsRealExplanations(t *testing.T) {
	t.Parallel()
	golden := ""
	for _, name := range []string{"keyword", "mention_of_all", "nothing_known", "own"} {
		golden += readFile(t, "testdata/explain_"+name+".txt")
	}
	block := regexp.MustCompile("(?s)```text\n(.*?)```").FindStringSubmatch(readFile(t, "README.md"))
	if block == nil {
		t.Fatal("README.md shows no explanation")
	}
	for line := range strings.Lines(block[1]) {
		if !strings.Contains(golden, line) {
			t.Errorf("in no golden file: %s", line)
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func withoutIndent(code string) string {
	return regexp.MustCompile(`(?m)^\s+`).ReplaceAllString(code, "")
}
