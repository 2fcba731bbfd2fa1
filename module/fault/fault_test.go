package fault_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
)

func TestKindOfFindsTheFirstFaultInTheChain(t *testing.T) {
	notFound := fault.New(fault.NotFound, "not there")
	for name, test := range map[string]struct {
		err  error
		want fault.Kind
	}{
		"no error":                     {nil, fault.Internal},
		"no fault":                     {io.EOF, fault.Internal},
		"no fault, wrapped":            {fmt.Errorf("reading: %w", io.EOF), fault.Internal},
		"a fault":                      {notFound, fault.NotFound},
		"a wrapped fault":              {fmt.Errorf("reading: %w", fmt.Errorf("more: %w", notFound)), fault.NotFound},
		"a joined fault":               {errors.Join(io.EOF, notFound), fault.NotFound},
		"a fault with a cause":         {fault.Wrap(fault.Database, "broken", io.EOF), fault.Database},
		"a fault whose cause is one":   {fault.Wrap(fault.Database, "broken", notFound), fault.Database},
		"two joined faults":            {errors.Join(fault.New(fault.TooLarge, ""), notFound), fault.TooLarge},
		"only the text of a fault":     {fmt.Errorf("reading: %v", notFound), fault.Internal},
		"a fault that says it is none": {fault.New(fault.Internal, ""), fault.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fault.KindOf(test.err); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestDetailsTellEveryCause(t *testing.T) {
	away := fault.Wrap(fault.Unavailable, "Try again later.", fmt.Errorf("redis: get: %w", io.ErrClosedPipe))
	for want, err := range map[string]error{
		"":                            nil,
		"EOF":                         io.EOF,
		"not there":                   fault.New(fault.NotFound, "not there"),
		"reading: not there":          fmt.Errorf("reading: %w", fault.New(fault.NotFound, "not there")),
		"broken: EOF":                 fault.Wrap(fault.Database, "broken", io.EOF),
		"reading: only the text: EOF": fmt.Errorf("reading: %w", fault.Wrap(fault.Database, "only the text", io.EOF)),
		"Try again later.: redis: get: io: read/write on closed pipe":        away,
		"outer: Try again later.: redis: get: io: read/write on closed pipe": fault.Wrap(fault.Internal, "outer", away),
		"EOF\nTry again later.\nbroken: redis: get: io: read/write on closed pipe: unexpected EOF": errors.Join(
			io.EOF, away, fault.Wrap(fault.Database, "broken", io.ErrUnexpectedEOF)),
		"a b: EOF: unexpected EOF": fmt.Errorf("%w %w",
			fault.Wrap(fault.Database, "a", io.EOF), fault.Wrap(fault.Database, "b", io.ErrUnexpectedEOF)),
	} {
		if got := fault.Details(err); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestTheErrorTextHidesTheCause(t *testing.T) {
	bare, wrapped := fault.New(fault.NotFound, "not there"), fault.Wrap(fault.Database, "broken", io.ErrClosedPipe)
	if bare.Error() != "not there" || bare.Text != "not there" || errors.Unwrap(bare) != nil {
		t.Errorf("without a cause: %q, text %q", bare.Error(), bare.Text)
	}
	if wrapped.Text != "broken" || wrapped.Error() != "broken" {
		t.Errorf("with a cause: %q, text %q", wrapped.Error(), wrapped.Text)
	}
	if !errors.Is(wrapped, io.ErrClosedPipe) || !errors.Is(fmt.Errorf("x: %w", bare), bare) {
		t.Error("errors.Is does not find the cause or the fault")
	}
	if errors.Is(bare, fault.New(fault.NotFound, "not there")) {
		t.Error("two faults of one text are taken for the same")
	}
}

func TestKindsListsEveryKindOnce(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "fault.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if name, ok := spec.Type.(*ast.Ident); ok && name.Name == "Kind" {
				declared += len(spec.Names)
			}
		}
		return true
	})
	kinds := fault.Kinds()
	if len(kinds) != declared {
		t.Errorf("%d kinds are listed, %d declared", len(kinds), declared)
	}
	slices.Sort(kinds)
	if unique := slices.Compact(slices.Clone(kinds)); len(unique) != len(kinds) || slices.Contains(unique, "") {
		t.Errorf("a kind is listed twice or is empty: %q", kinds)
	}
}
