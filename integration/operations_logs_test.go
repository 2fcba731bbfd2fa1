package integration

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logLine is a call of a zap logger in the code of the module.
type logLine struct {
	at      string
	message string   // empty if it is no constant
	fields  []string // the names of the typed fields
}

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

// logLines returns the calls in a file that can log. Only files that import zap
// can.
func logLines(file *ast.File, set *token.FileSet) (lines []logLine) {
	imports := func(spec *ast.ImportSpec) bool { return spec.Path.Value == `"go.uber.org/zap"` }
	if !slices.ContainsFunc(file.Imports, imports) {
		return nil
	}
	levels := []string{"Debug", "Info", "Warn", "Error", "DPanic", "Panic", "Fatal"}
	ast.Inspect(file, func(node ast.Node) bool {
		call, isCall := node.(*ast.CallExpr)
		if !isCall || len(call.Args) == 0 {
			return true
		}
		method, isMethod := call.Fun.(*ast.SelectorExpr)
		if !isMethod || isPackage(method.X, "zap") {
			return true
		}
		args := call.Args
		if takesLevel := method.Sel.Name == "Log" || method.Sel.Name == "Check"; takesLevel && len(args) > 1 && isLevel(args[0]) {
			args = args[1:]
		} else if !slices.Contains(levels, method.Sel.Name) {
			return true
		}
		lines = append(lines, logLine{set.Position(call.Pos()).String(), constant(args[0]), fieldNames(args[1:])})
		return true
	})
	return lines
}

// isLevel reports whether an argument is a level of zap's.
func isLevel(x ast.Expr) bool {
	level, isMember := x.(*ast.SelectorExpr)
	return isMember && strings.HasSuffix(level.Sel.Name, "Level")
}

func isPackage(x ast.Expr, name string) bool {
	id, isName := x.(*ast.Ident)
	return isName && id.Name == name
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

// fieldNames returns the names of zap fields.
func fieldNames(args []ast.Expr) (names []string) {
	for _, arg := range args {
		call, isCall := arg.(*ast.CallExpr)
		if !isCall || len(call.Args) == 0 {
			continue
		}
		if method, isMethod := call.Fun.(*ast.SelectorExpr); isMethod && method.Sel.Name == "Error" {
			names = append(names, "error")
			continue
		}
		names = append(names, constant(call.Args[0]))
	}
	return names
}

func TestEveryLogLineIsExplainedToOperators(t *testing.T) {
	t.Parallel()
	explained := map[string]string{}
	for _, row := range tableRows(operatorPage(t, "## Log lines")) {
		explained[strings.Trim(row[0], "`")] = strings.Join(row[1:], " ")
	}
	found := 0
	moduleCode(t, func(file *ast.File, set *token.FileSet) {
		for _, line := range logLines(file, set) {
			found++
			row, isExplained := explained[line.message]
			if !isExplained {
				t.Errorf("%s: the page does not explain %q", line.at, line.message)
			}
			for _, field := range line.fields {
				if !strings.Contains(row, "`"+field+"`") {
					t.Errorf("%s: the page does not name the field %q of %q", line.at, field, line.message)
				}
			}
			delete(explained, line.message)
		}
	})
	if found < 5 {
		t.Errorf("found %d log lines in the code: the search is broken", found)
	}
	for message := range explained {
		t.Errorf("the page explains %q, which the module does not write", message)
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
