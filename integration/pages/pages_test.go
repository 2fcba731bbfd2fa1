package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == ".git"):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	fencedBlock  = regexp.MustCompile("(?s)```.*?```")
	goBlock      = regexp.MustCompile("(?s)```go\n(.*?)```")
	pageLink     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchorRune = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

func anchors(page string) (all []string) {
	for _, found := range heading.FindAllStringSubmatch(fencedBlock.ReplaceAllString(page, ""), -1) {
		text := noAnchorRune.ReplaceAllString(strings.ToLower(found[1]), "")
		all = append(all, strings.ReplaceAll(text, " ", "-"))
	}
	return all
}

func TestEveryLinkOfThePagesHasATarget(t *testing.T) {
	t.Parallel()
	all := pages(t)
	links := 0
	for path, page := range all {
		for _, found := range pageLink.FindAllStringSubmatch(fencedBlock.ReplaceAllString(page, ""), -1) {
			target, anchor, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: the link %s leads nowhere", path, found[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(all[file]), anchor) {
				t.Errorf("%s: the link %s leads to no heading", path, found[1])
			}
		}
	}
	if links < 20 {
		t.Errorf("found only %d links", links)
	}
}

// Each Go block of a page is a part of a compiled file. A complete program is compiled by .ci/run; the page
// leaves out its imports.
func TestEveryGoBlockOfThePagesIsCompiled(t *testing.T) {
	t.Parallel()
	files := goFilesOfThePages(t)
	programs, parts := 0, 0
	for path, page := range pages(t) {
		for _, block := range goBlock.FindAllStringSubmatch(page, -1) {
			shown, isProgram := strings.CutPrefix(block[1], "package main\n")
			if isProgram {
				_, shown, _ = strings.Cut(strings.Replace(shown, "func main() {", "func Example() {", 1), "\n)\n")
			}
			shown = strings.TrimSpace(flat(shown))
			isCompiled := slices.ContainsFunc(files, func(code string) bool { return strings.Contains(code, shown) })
			if !isCompiled || shown == "" {
				t.Errorf("%s: not compiled in a test file:\n%s", path, block[1])
			}
			if isProgram {
				programs++
			} else {
				parts++
			}
		}
	}
	if programs < 1 || parts < 20 {
		t.Errorf("found only %d programs and %d other Go blocks", programs, parts)
	}
}

// goFilesOfThePages returns the files that pages show parts of, flat.
func goFilesOfThePages(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{
		"../example_test.go", "../handlers/example*_test.go", "../module/example*_test.go", "../module/*/example*_test.go", "../module/delivery/channel/*/example*_test.go",
		"minimal/*.go", "sqlstore/*.go", "redisurl/tls.go",
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: found %d files, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, strings.TrimSpace(flat(string(text))))
		}
	}
	return files
}

// The README has each interface that a host may replace, and the host developer's page each file with one.
func TestThePagesListTheInterfacesOfTheModule(t *testing.T) {
	t.Parallel()
	all, interfaces := pages(t), 0
	paths, err := filepath.Glob("../module/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range declaredInterface.FindAllStringSubmatch(string(text), -1) {
			interfaces++
			if !strings.Contains(all["../README.md"], "`"+found[1]+"`") {
				t.Errorf("README.md does not name %s", found[1])
			}
			if file := filepath.Base(path); !strings.Contains(all["../module/README.md"], "]("+file+")") {
				t.Errorf("module/README.md does not link to %s, which has %s", file, found[1])
			}
		}
	}
	if interfaces < 20 {
		t.Errorf("found only %d interfaces", interfaces)
	}
}

var declaredInterface = regexp.MustCompile(`(?m)^type ([A-Z]\w*) interface`)

// flat replaces each spacing in Go code by one space.
func flat(code string) string { return anySpace.ReplaceAllString(code, " ") }

var anySpace = regexp.MustCompile(`\s+`)

// A vertical bar divides cells also between backquotes; a page must write \| there.
func TestRowsOfATableHaveTheSameNumberOfCells(t *testing.T) {
	t.Parallel()
	for path, page := range pages(t) {
		cells := 0
		for line := range strings.Lines(fencedBlock.ReplaceAllString(page, "")) {
			if !strings.HasPrefix(line, "|") {
				cells = 0
				continue
			}
			n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") - 1
			if cells != 0 && n != cells {
				t.Errorf("%s: %d cells, the rows above have %d: %s", path, n, cells, line)
			}
			cells = n
		}
	}
}

// Readers do not finish a page longer than 10 KB.
func TestEachPageIsShort(t *testing.T) {
	t.Parallel()
	for path, page := range pages(t) {
		if len(page) > 10<<10 {
			t.Errorf("%s has %d bytes, want at most 10 KB: the rest belongs beside the code that it is about", path, len(page))
		}
	}
}

var (
	testCommand  = regexp.MustCompile("(?m)(?:`|^)(go test [^`\n]*-(?:run|fuzz) [^`\n]*)")
	runFlag      = regexp.MustCompile(`-(?:run|fuzz) (?:'([^']+)'|(\S+))`)
	testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w*)\(`)
)

// A renamed test leaves a command on a page that runs nothing and passes. Go fuzzes nothing if several targets match.
func TestCommandsOfThePagesRunTests(t *testing.T) {
	t.Parallel()
	commands := 0
	for path, page := range pages(t) {
		for _, found := range testCommand.FindAllStringSubmatch(strings.ReplaceAll(page, `\|`, "|"), -1) {
			if strings.Contains(found[1], "-bench") {
				continue // such a command runs no test
			}
			commands++
			if before, _, isChaos := strings.Cut(found[1], "-chaos="); isChaos && !strings.Contains(before, "./") {
				t.Errorf("%s: go test takes packages only before flags that it does not know, in %s", path, found[0])
			}
			run := runFlag.FindStringSubmatch(found[1])
			for alternative := range strings.SplitSeq(run[1]+run[2], "|") {
				tests := testsOf(t, strings.TrimSuffix(alternative, "$"), strings.Fields(found[1]))
				if isFuzz := strings.Contains(found[1], "-fuzz "); tests == 0 || isFuzz && tests > 1 && !strings.HasSuffix(alternative, "$") {
					t.Errorf("%s: %d tests have %q in their names, in %s", path, tests, alternative, found[1])
				}
			}
		}
	}
	if commands < 20 {
		t.Errorf("found only %d commands", commands)
	}
}

// testsOf counts the tests in the packages of a command with the text in their names.
func testsOf(t *testing.T, text string, command []string) (tests int) {
	t.Helper()
	for _, argument := range command {
		folder, isPackage := strings.CutPrefix(argument, "./")
		if !isPackage {
			continue
		}
		folder, below := strings.CutSuffix(folder, "...")
		for _, name := range testNames(t, filepath.Join("..", folder), below) {
			if strings.Contains(name, text) {
				tests++
			}
		}
	}
	return tests
}

// testNames returns the names of the tests in a folder, and in the folders below it.
func testNames(t *testing.T, folder string, below bool) (names []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != folder && (!below || entry.Name() == "node_modules"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		code, err := os.ReadFile(path)
		for _, found := range testFunction.FindAllSubmatch(code, -1) {
			names = append(names, string(found[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
