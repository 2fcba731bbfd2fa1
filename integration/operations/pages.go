// Package operations has the operators' pages, for tests that compare them with the code.
package operations

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

//go:embed *.md
var files embed.FS

// Pages returns the pages as one text.
func Pages() (string, error) {
	var all strings.Builder
	names, err := fs.Glob(files, "*.md")
	for _, name := range names {
		page, err := files.ReadFile(name)
		if err != nil {
			return "", err
		}
		all.Write(page)
	}
	return all.String(), err
}

// Section returns the text between a heading and the next heading.
func Section(heading string) (string, error) {
	pages, err := Pages()
	if err != nil {
		return "", err
	}
	_, rest, found := strings.Cut(pages, "\n"+heading+"\n")
	if !found {
		return "", fmt.Errorf("the operators' pages have no heading %q", heading)
	}
	part, _, _ := strings.Cut(rest, "\n#")
	return part, nil
}

// Part returns a [Section]. It ends the test if there is none.
func Part(t testing.TB, heading string) string {
	t.Helper()
	part, err := Section(heading)
	if err != nil {
		t.Fatal(err)
	}
	return part
}
