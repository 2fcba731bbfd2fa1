package pages

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

// importRow lists what a package may import besides the standard library, and the forbidden packages of the
// standard library.
type importRow struct {
	pkg       string
	may       []string
	mustNever []string
}

// importTable is the package map: the arrows point inwards.
func importTable() []importRow {
	const (
		echo      = "github.com/labstack/echo/v4"
		fx        = "go.uber.org/fx"
		gomail    = "github.com/wneessen/go-mail"
		json      = "github.com/go-json-experiment/json/jsontext"
		idna      = "golang.org/x/net/idna"
		otel      = "go.opentelemetry.io/otel"
		prom      = "github.com/prometheus/client_golang/prometheus"
		redis     = "github.com/redis/go-redis/v9"
		ssrf      = "code.dny.dev/ssrf"
		group     = "golang.org/x/sync/errgroup"
		semaphore = "golang.org/x/sync/semaphore"
		zap       = "go.uber.org/zap"

		logging     = "module/telemetry/logging"
		redisClient = "module/redisclient"
		redisCommit = "module/commit/rediscommit"
		retry       = "module/retry"
		bounded     = "module/internal/bounded"
		partition   = "module/internal/partition"
		signed      = "module/internal/signed"
		mailChannel = "module/delivery/channel/mail"
		webPush     = "module/delivery/channel/webpush"
	)
	noIO := []string{"net", "net/http", "os", "time", "math/rand", "math/rand/v2", "crypto/rand"}
	pure := []string{"module/fault", "module/mxid", "module/strictjson"}
	registry := append([]string{"module/match", "module/pushrule", "module/pusher"}, pure...)
	inner := append([]string{"module", "module/pushrule", "module/pusher", "module/commit", "module/observe", retry}, pure...)
	with := func(packages ...string) []string { return append(packages, inner...) }
	return []importRow{
		{"module/fault", nil, noIO},
		{"module/mxid", nil, noIO},
		{"module/strictjson", []string{"module/fault", json}, noIO},
		{bounded, nil, noIO},
		{signed, nil, noIO},
		{partition, []string{"module", "module/fault", "module/mxid", retry}, []string{"net", "net/http", "os"}},
		{retry, nil, []string{"net", "net/http", "os"}},
		{"module/observe", []string{"module/fault"}, []string{"net", "net/http", "os"}},
		{"module/telemetry/metrics", with(prom, "module/delivery", "module/feed"), nil},
		{logging, with(redisClient, "module/delivery", "module/service", zap), nil},
		{"module/telemetry/tracing", with("module/delivery", otel+"/attribute", otel+"/codes", otel+"/propagation", otel+"/trace"), nil},
		{"module/commit", []string{"module/fault", "module/stored", "module/observe", retry}, []string{"net/http", "os"}},
		{redisClient, []string{"module/fault", "module/observe", retry, redis}, nil},
		{redisCommit, with(redis, redisClient, "module/stored", bounded, semaphore), nil},
		{"module/pushrule", pure, noIO},
		{"module/match", append([]string{"module/pushrule"}, pure...), noIO},
		{"module/stored", append([]string{"module/pushrule", "module/pusher"}, pure...), noIO},
		{"module/pusher", append([]string{idna, ssrf}, pure...), noIO}, // from ssrf only the ranges, which do no I/O
		{"module/delivery", with("module/feed", "module/match", bounded, partition, semaphore, "module/delivery/channel", "module/delivery/channel/kinds", mailChannel, webPush, "module/delivery/content", "module/delivery/turns"), []string{"os"}},
		{"module/delivery/channel", with("module/delivery/content", "module/delivery/dialguard", idna), []string{"os"}},
		{"module/delivery/channel/httppush", with("module/delivery/channel", "module/delivery/content"), []string{"os"}},
		{mailChannel, with("module/match", "module/delivery/channel", "module/delivery/content"), []string{"net", "net/http", "os"}},
		{webPush, with("module/delivery/channel", "module/delivery/content", bounded, signed), []string{"net", "net/http", "os"}},
		{"module/delivery/channel/kinds", with("module/delivery/channel", "module/delivery/channel/httppush", mailChannel, webPush), []string{"os"}},
		{"module/delivery/content", with("module/match"), []string{"net", "os"}},
		{"module/delivery/turns", nil, []string{"net", "os"}},
		{"module/delivery/dialguard", []string{ssrf}, nil},
		{"module/delivery/redisqueue", with("module/stored", bounded, redis, redisClient, redisCommit), nil},
		{"module/delivery/queuetest", inner, nil},
		{"module/handover", []string{"module", "module/fault", "module/match", "module/mxid", "module/strictjson"}, []string{"net", "net/http", "os"}},
		{"module/unread", with(partition, "module/unread/fold"), []string{"net", "net/http", "os"}},
		{"module/unread/fold", []string{"module/fault"}, noIO},
		{"module/unread/redisunread", with("module/stored", redis, redisClient, redisCommit), nil},
		{"module", registry, []string{"net", "net/http", "os", "crypto/rand"}},
		{"module/mail", []string{"module", signed, "module/mxid", "module/pusher", "module/strictjson"}, []string{"net", "net/http", "os", "crypto/rand"}},
		{"module/mail/smtp", []string{"module", "module/pusher", gomail, gomail + "/smtp"}, []string{"net/http", "os"}},
		{"module/service", with(bounded, group, "module/mail"), []string{"net", "net/http", "os", "crypto/rand"}},
		{"module/feed", with("module/match", bounded), []string{"net", "net/http", "os", "crypto/rand"}},
		{"module/storetest", inner, nil},
		{"module/redistest", []string{retry, redis, redis + "/maintnotifications"}, nil},
		{"rulestore", with("module/stored", redis, redisClient, redisCommit), nil},
		{"pusherstore", with("module/stored", redis, redisClient, redisCommit), nil},
		{"handlers", with(echo, zap), nil},
		{"module/assembly", with("module/match", "module/delivery/channel/httppush", mailChannel, webPush, "module/feed", "module/service", "module/delivery", "module/delivery/dialguard", "module/delivery/redisqueue", "module/handover", "module/mail", "module/mail/smtp", "module/stored", "handlers", "rulestore", "pusherstore", "module/unread", "module/unread/redisunread", redisClient, redisCommit, logging, "module/telemetry/metrics", "module/telemetry/tracing",
			redis, zap, prom, otel+"/trace"), nil},
		{"", with("module/assembly", webPush, "module/feed", "module/service", "module/delivery", "handlers", "module/unread", redisClient, redisCommit, "module/telemetry/metrics",
			redis, fx, zap, prom, otel+"/trace"), nil},
	}
}

func TestPackagesImportOnlyInwards(t *testing.T) {
	t.Parallel()
	imports := listImports(t)
	for _, row := range importTable() {
		list, found := imports[row.pkg]
		if !found {
			t.Errorf("there is no package %q", row.pkg)
		}
		for _, imported := range list {
			_, ours := imports[imported]
			foreign := ours || strings.Contains(imported, ".")
			if foreign && !slices.Contains(row.may, imported) || slices.Contains(row.mustNever, imported) {
				t.Errorf("package %q must not import %q", row.pkg, imported)
			}
		}
	}
	for pkg := range imports {
		listed := slices.ContainsFunc(importTable(), func(row importRow) bool { return row.pkg == pkg })
		if !listed && !strings.HasPrefix(pkg, "integration") {
			t.Errorf("package %q has no row in the table", pkg)
		}
	}
}

// A kind of pushers is a folder below module/delivery/channel: no other package has a case for one.
func TestKindsOfPushersAreNamedInTheirFolders(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`pusher\.(HTTP|Email)\b|"(mail:$|email"|webpush")|\bIs(Mail|HTTP|Email)`)
	err := filepath.WalkDir("../module", func(path string, _ fs.DirEntry, err error) error {
		isOwn := strings.Contains(path, "/delivery/channel/") || strings.Contains(path, "/module/pusher/") || strings.Contains(path, "test")
		if err != nil || isOwn || !strings.HasSuffix(path, ".go") {
			return err
		}
		code, err := os.ReadFile(path)
		for n, line := range strings.Split(string(code), "\n") {
			if code, _, _ := strings.Cut(line, "//"); named.MatchString(code) {
				t.Errorf("%s:%d names a kind: %s", path, n+1, line)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A type with many methods is hard to read.
func TestNoTypeOfDeliveryHasManyMethods(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../module/delivery/*.go")
	if err != nil {
		t.Fatal(err)
	}
	methods, receiver := map[string]int{}, regexp.MustCompile(`(?m)^func \(\w+ \*?(\w+)\)`)
	for _, file := range files {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range receiver.FindAllSubmatch(code, -1) {
			if name := string(found[1]); !strings.HasSuffix(file, "_test.go") {
				methods[name]++
			}
		}
	}
	for name, n := range methods {
		if n > 30 {
			t.Errorf("%s has %d methods, want at most 30", name, n)
		}
	}
	if methods["Delivery"] == 0 {
		t.Error("no methods were found")
	}
}

// Hosts do not require the modules that only tests need.
func TestHostsInheritOnlyWhatTheModuleImports(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var imports []string
	for pkg, list := range listImports(t) {
		if !strings.HasPrefix(pkg, "integration") {
			imports = append(imports, list...)
		}
	}
	required := 0
	for line := range strings.Lines(string(file)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || !strings.HasPrefix(fields[1], "v") { // indirect modules have a comment
			continue
		}
		required++
		if !slices.ContainsFunc(imports, func(path string) bool { return path == fields[0] || strings.HasPrefix(path, fields[0]+"/") }) {
			t.Errorf("go.mod requires %s, which only tests import", fields[0])
		}
	}
	if required < 5 {
		t.Errorf("found %d requirements: the search is broken", required)
	}
}

// listImports returns the imports of the module's packages, without test files. The names of the module's
// packages are relative.
func listImports(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, hosttest.ModulePath+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	shorten := func(path string) string {
		if path == hosttest.ModulePath {
			return ""
		}
		return strings.TrimPrefix(path, hosttest.ModulePath+"/")
	}
	imports := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		list := []string{}
		for _, path := range fields[1:] {
			list = append(list, shorten(path))
		}
		imports[shorten(fields[0])] = list
	}
	return imports
}
