package pages

import (
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

// promised are the packages under semantic versioning.
var promised = []string{
	"pushfx", "handlers", "module", "module/delivery", "module/fault", "module/match",
	"module/mxid", "module/observe", "module/pusher", "module/pushrule", "module/storetest", "pusherstore", "rulestore",
}

// notPromised are the names of package module that belong to the queue of delivery.
var notPromised = []string{
	"DeliveryQueue", "Priority", "HighPriority", "LowPriority", "CountsOnly", "MaxText", "Notification", "Addition", "Recipient", "Appended", "Claim",
	"Trouble", "Done", "Look", "Looked", "DueUser", "ClaimRequest", "PusherGate", "Claimed", "ClaimedPusher", "Log", "LogPusher", "QueueSummary", "ErrFenced",
}

// lent are types of other packages in the API of promised packages.
var lent = map[string][]string{
	"module/commit/rediscommit":       {"Config", "Durability", "Options"},
	"module/feed":                     {"Config", "Feed"},
	"module/assembly":                 {"Mail"},
	"module/delivery/channel/mail":    {"Config"},
	"module/delivery/channel/webpush": {"Config"},
	"module/mail":                     {"Config", "Letter", "Message", "Room"},
	"module/mail/smtp":                {"Config"},
	"module/telemetry/metrics":        {"DeliveryConfig"},
	"module/redisclient":              {"Clock", "Config"},
	"module/strictjson":               {"Member", "Reader"},
}

// A change of the golden file is a change of the API that hosts compile against.
func TestTheAPIOfThePromisedPackagesIsAsListed(t *testing.T) {
	t.Parallel()
	var list []string
	load := compiled(t)
	for _, name := range promised {
		pkg := load(name)
		for _, name := range pkg.Scope().Names() {
			if object := pkg.Scope().Lookup(name); object.Exported() && (pkg.Name() != "module" || !slices.Contains(notPromised, name)) {
				list = append(list, describe(object)...)
			}
		}
	}
	for pkg, names := range lent {
		for _, name := range names {
			list = append(list, describe(load(pkg).Scope().Lookup(name))...)
		}
	}
	slices.Sort(list)
	const file = "pages/testdata/api.txt"
	if *hosttest.Update {
		if err := os.WriteFile(file, []byte(strings.Join(list, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	listed := strings.Split(strings.TrimSpace(string(golden)), "\n")
	for _, line := range without(listed, list) {
		t.Errorf("is gone: %s", line)
	}
	for _, line := range without(list, listed) {
		t.Errorf("is new: %s", line)
	}
}

func without(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(line string) bool { return slices.Contains(other, line) })
}

func TestThePagesListThePromisedPackages(t *testing.T) {
	t.Parallel()
	list := "`" + strings.Join(promised, "`, `") + "`"
	if page := pages(t)["../.github/CHANGELOG.md"]; !strings.Contains(flat(page), list) {
		t.Errorf("CHANGELOG.md does not have the list %s", list)
	}
}

func compiled(t *testing.T) func(name string) *types.Package {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, name := range promised {
		args = append(args, importPath(name))
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		pkg, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[pkg] = file
	}
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(pkg string) (io.ReadCloser, error) { return os.Open(files[pkg]) })
	return func(name string) *types.Package {
		pkg, err := from.Import(importPath(name))
		if err != nil {
			t.Fatal(err)
		}
		return pkg
	}
}

func importPath(name string) string {
	return path.Join(hosttest.ModulePath, strings.TrimPrefix(name, "pushfx"))
}

func describe(object types.Object) []string {
	name := object.Pkg().Name() + "." + object.Name()
	if _, isType := object.(*types.TypeName); !isType {
		return []string{name + " " + typeText(object.Type())}
	}
	lines := []string{name + " " + typeText(object.Type().Underlying())}
	add := func(member types.Object) {
		if member.Exported() {
			lines = append(lines, fmt.Sprintf("%s.%s %s", name, member.Name(), typeText(member.Type())))
		}
	}
	switch underlying := object.Type().Underlying().(type) {
	case *types.Struct:
		for field := range underlying.Fields() {
			add(field)
		}
	case *types.Interface:
		for method := range underlying.Methods() {
			add(method)
		}
	}
	if named, isNamed := object.Type().(*types.Named); isNamed {
		for method := range named.Methods() {
			add(method)
		}
	}
	return lines
}

// typeText returns a type without the names of parameters, which are not part of the API.
func typeText(t types.Type) string {
	switch t := t.(type) {
	case *types.Struct:
		return "struct"
	case *types.Interface:
		return "interface"
	case *types.Signature:
		return types.TypeString(types.NewSignatureType(nil, nil, nil, unnamed(t.Params()), unnamed(t.Results()), t.Variadic()), (*types.Package).Name)
	}
	return types.TypeString(t, (*types.Package).Name)
}

func unnamed(tuple *types.Tuple) *types.Tuple {
	var list []*types.Var
	for v := range tuple.Variables() {
		list = append(list, types.NewParam(v.Pos(), v.Pkg(), "", v.Type()))
	}
	return types.NewTuple(list...)
}
