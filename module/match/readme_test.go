package match_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

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
