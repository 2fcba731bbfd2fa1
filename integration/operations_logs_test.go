package integration

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/observe"
)

// moduleCode calls do for each file of the module's code, which a host includes.
func moduleCode(t *testing.T, do func(file *ast.File, set *token.FileSet)) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "integration" || strings.HasPrefix(entry.Name(), ".g")):
			return fs.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err == nil {
			do(file, set)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// constant returns the text of a string literal, or nothing.
func constant(x ast.Expr) string {
	literal, isLiteral := x.(*ast.BasicLit)
	if !isLiteral {
		return ""
	}
	text, _ := strconv.Unquote(literal.Value)
	return text
}

func TestEveryLogLineIsExplainedToOperators(t *testing.T) {
	t.Parallel()
	lines := map[string]string{ // those of package handlers
		"request failed": "error", "the host could not authenticate a request": "error",
	}
	for _, problem := range observe.Problems() {
		lines[problem.String()] = "warn"
		if problem.IsFault() {
			lines[problem.String()] = "error"
		}
	}
	explained := map[string]string{}
	for _, row := range tableRows(operatorPage(t, "## Log lines")) {
		explained[strings.Trim(row[0], "`")] = strings.TrimSpace(row[1])
	}
	if !maps.Equal(lines, explained) {
		t.Errorf("the page explains %v\nwant %v", explained, lines)
	}
}

func TestEveryCauseThatOperatorsAreToldOfIsInTheCode(t *testing.T) {
	t.Parallel()
	var texts []string
	moduleCode(t, func(file *ast.File, _ *token.FileSet) {
		ast.Inspect(file, func(node ast.Node) bool {
			if x, isExpr := node.(ast.Expr); isExpr {
				texts = append(texts, constant(x))
			}
			return true
		})
	})
	rows := tableRows(operatorPage(t, "### Causes"))
	if len(rows) < 5 {
		t.Fatalf("the page tells of %d causes", len(rows))
	}
	for _, row := range rows {
		cause := strings.Trim(row[0], "`")
		if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, cause) }) {
			t.Errorf("no error of the module has %q", cause)
		}
	}
}
