package pages

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

const pageOfPackages = "../.github/PACKAGES.md"

// The table has the first sentence of each package's documentation.
func TestThePageOfPackagesHasTheirFirstSentences(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-f", "{{if .GoFiles}}{{.ImportPath}}\t{{.Doc}}{{end}}", hosttest.ModulePath+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	table := "| Package | Says of itself |\n|---|---|\n"
	for line := range strings.Lines(string(out)) {
		path, doc, _ := strings.Cut(strings.TrimSpace(line), "\t")
		name := strings.TrimPrefix(strings.TrimPrefix(path, hosttest.ModulePath), "/")
		sentence, isDocumented := strings.CutPrefix(packageDoc.ReplaceAllString(doc, "\t"), "\t")
		if !isDocumented || !strings.HasSuffix(sentence, ".") {
			t.Errorf("the documentation of %s does not begin with a sentence: %q", path, doc)
		}
		table += fmt.Sprintf("| [`%s`](../%s) | %s |\n", cmp.Or(name, "pushfx"), name, sentence)
	}
	page := pages(t)[pageOfPackages]
	before, after, _ := strings.Cut(page, "| Package |")
	if *hosttest.Update {
		if err := os.WriteFile(pageOfPackages, []byte(before+table), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if "| Package |"+after != table {
		t.Errorf("%s differs from the packages; -update writes it:\n%s", pageOfPackages, table)
	}
}

var (
	packageDoc = regexp.MustCompile(`^(Package|Command) \w+ `)
	ownWord    = regexp.MustCompile(`(?i)\b(gate|claim|lease|shard|generation|floor)s?\b`)
	notProse   = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`|\\[[^]]*\\]\\([^)]*\\)|(?m:^#[^\n]*$)")
)

// A page that uses one of the words of the glossary links to it.
func TestPagesLinkTheWordsThatTheyUse(t *testing.T) {
	t.Parallel()
	using := 0
	for path, page := range pages(t) {
		if path == pageOfPackages || path == "../.github/CHANGELOG.md" || !ownWord.MatchString(notProse.ReplaceAllString(page, "")) {
			continue
		}
		if using++; !strings.Contains(page, "PACKAGES.md#words") {
			t.Errorf("%s uses %q and does not link to the words", path, ownWord.FindString(notProse.ReplaceAllString(page, "")))
		}
	}
	if using == 0 {
		t.Error("no page uses the words: the search is broken")
	}
}
