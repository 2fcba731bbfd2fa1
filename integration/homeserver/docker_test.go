package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/pushfx/pushfx/module/redistest"
)

// These tests check the Dockerfile and compose.yaml without Docker.

// dockerfile has what the tests need of a Dockerfile.
type dockerfile struct {
	build      []string // the command that builds the program
	copied     string   // where the program is in the image
	entrypoint []string
}

func readDockerfile(t *testing.T, name string) (d dockerfile) {
	t.Helper()
	for line := range strings.Lines(readFile(t, name)) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch words := strings.Fields(rest); {
		case instruction == "RUN":
			d.build = words
		case instruction == "COPY" && words[0] == "--from=build":
			d.copied = words[2]
		case instruction == "ENTRYPOINT":
			if err := json.Unmarshal([]byte(rest), &d.entrypoint); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
	}
	return d
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// buildFor builds the program of a Dockerfile as the Dockerfile does, but with the settings of the other tests, whose
// build cache it can use.
func (d dockerfile) buildFor(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "homeserver")
	at := slices.Index(d.build, "-o")
	if at < 0 || d.build[0] != "CGO_ENABLED=0" || d.build[at+1] != d.copied || d.entrypoint[0] != d.copied {
		t.Fatalf("builds %q, copies %s and starts %q", d.build, d.copied, d.entrypoint)
	}
	arguments := slices.Clone(d.build[1:])
	arguments[at] = program // d.build has one word more
	build := exec.CommandContext(t.Context(), arguments[0], arguments[1:]...)
	build.Dir = "../.."
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", arguments, err, output)
	}
	return program
}

// expectStart starts a container's program with the container's arguments, on free ports and a Redis of the test, and
// stops it as Docker does.
func expectStart(t *testing.T, program string, arguments ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, arguments...) // the last value of a flag counts
	var stderr buffer
	command.Stderr = &stderr
	stdout, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	lines.Scan()
	address := regexp.MustCompile(`^Open (http://\S+) in`).FindStringSubmatch(lines.Text())
	if address == nil {
		_ = command.Wait()
		t.Fatalf("%q does not start: %s", arguments, stderr.String())
	}
	client := &http.Client{Transport: new(http.Transport), Timeout: patience}
	defer client.CloseIdleConnections()
	response, err := client.Get(address[1] + "/healthz")
	if err == nil {
		response.Body.Close()
	}
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("%q: %v %v", arguments, response, err)
	}
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if err := command.Wait(); err != nil {
		t.Errorf("%q: %v: %s", arguments, err, stderr.String())
	}
}

// service is a service of a compose file.
type service struct {
	Image       string
	Build       struct{ Context, Dockerfile string }
	Command     []string
	Environment map[string]string
	Volumes     []string
	Ports       []string
	DependsOn   map[string]any `yaml:"depends_on"`
}

const operationsFolder = "../operations"

func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readFile(t, filepath.Join(operationsFolder, name))), into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func readServices(t *testing.T) map[string]service {
	t.Helper()
	var file struct{ Services map[string]service }
	readYAML(t, "compose.yaml", &file)
	return file.Services
}

func TestTheDockerfilesStart(t *testing.T) {
	t.Parallel()
	image := readDockerfile(t, "Dockerfile")
	program := image.buildFor(t)
	flags := image.entrypoint[1:]
	t.Run("the image", func(t *testing.T) {
		t.Parallel()
		expectStart(t, program, append(slices.Clone(flags), "-listen=127.0.0.1:0")...)
	})
	hosts := 0
	for name, s := range readServices(t) {
		if s.Build.Dockerfile == "" {
			continue
		}
		hosts++
		if file := filepath.Join(operationsFolder, s.Build.Context, s.Build.Dockerfile); !isSameFile(t, file, "Dockerfile") {
			t.Errorf("%s is built from %s", name, file)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Require(t)
			arguments := slices.Concat(flags, s.Command)
			cfg, err := parseFlags(arguments)
			if err != nil || !strings.HasPrefix(cfg.listen, name+":") || !strings.HasPrefix(cfg.operators, name+":") {
				t.Fatalf("%q: %v; the service must listen on its own name", arguments, err)
			}
			here := []string{"-listen=127.0.0.1:0", "-operators=127.0.0.1:0", "-redis=" + redistest.Single(t).Addr(), "-data=" + dataFile(t)}
			expectStart(t, program, slices.Concat(arguments, here)...)
		})
	}
	if hosts != 2 {
		t.Errorf("compose.yaml builds %d hosts, want 2", hosts)
	}
}

func isSameFile(t *testing.T, a, b string) bool {
	t.Helper()
	first, err1 := os.Stat(a)
	second, err2 := os.Stat(b)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return os.SameFile(first, second)
}

// The build needs each file of the repository that git does not ignore.
func TestDockerLeavesOutWhatGitIgnores(t *testing.T) {
	t.Parallel()
	plain := func(line string) string {
		return strings.Trim(strings.TrimPrefix(strings.TrimSpace(line), "**/"), "/")
	}
	ignored := []string{".git"}
	for line := range strings.Lines(readFile(t, "../../.gitignore")) {
		ignored = append(ignored, plain(line))
	}
	for line := range strings.Lines(readFile(t, "../../.dockerignore")) {
		if !slices.Contains(ignored, plain(line)) {
			t.Errorf("Docker leaves out %s, which is a part of the repository", strings.TrimSpace(line))
		}
	}
}

// A name or a path that one file gives to another is one that the other has.
func TestComposeFilesFitTogether(t *testing.T) {
	t.Parallel()
	services := readServices(t)
	mounts := map[string]string{} // by path in the container, with the service before it
	for name, s := range services {
		for _, volume := range s.Volumes {
			parts := strings.Split(volume, ":")
			mounts[name+":"+parts[1]] = parts[0]
			if parts[0] == "data" {
				if !slices.ContainsFunc(s.Command, func(flag string) bool { return strings.HasPrefix(flag, "-data="+parts[1]+"/") }) {
					t.Errorf("%s does not keep its data at %s", name, parts[1])
				}
			} else if info, err := os.Stat(filepath.Join(operationsFolder, parts[0])); err != nil || !info.Mode().IsRegular() {
				t.Errorf("%s mounts %s: %v", name, parts[0], err)
			}
		}
		for other := range s.DependsOn {
			if services[other].Image == "" {
				t.Errorf("%s depends on %s, which is no service", name, other)
			}
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s is open to other machines: %s", name, port)
			}
		}
	}
	expectMount := func(path, file string) {
		t.Helper()
		if mounts[path] != file {
			t.Errorf("%s is %q, want %q, of %q", path, mounts[path], file, mounts)
		}
	}

	var prometheus struct {
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			StaticConfigs []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, "prometheus.yml", &prometheus)
	expectMount("prometheus:/etc/prometheus/prometheus.yml", "./prometheus.yml") // the image reads this file
	for _, file := range prometheus.RuleFiles {
		expectMount(path.Join("prometheus:/etc/prometheus", file), "./"+file)
	}
	var targets, operators []string
	for _, scraped := range prometheus.ScrapeConfigs {
		for _, static := range scraped.StaticConfigs {
			targets = append(targets, static.Targets...)
		}
	}
	for _, s := range services {
		for _, argument := range s.Command {
			if address, isOperators := strings.CutPrefix(argument, "-operators="); isOperators {
				operators = append(operators, address)
			}
			if address, isRedis := strings.CutPrefix(argument, "-redis="); isRedis && address != "redis:6379" {
				t.Errorf("a host connects to %s", address)
			}
		}
	}
	slices.Sort(targets)
	slices.Sort(operators)
	if len(targets) != 2 || !slices.Equal(targets, operators) {
		t.Errorf("Prometheus reads %q, hosts serve %q", targets, operators)
	}

	var sources struct {
		Datasources []struct{ Type, URL string }
	}
	readYAML(t, "grafana/datasources.yml", &sources)
	for _, source := range sources.Datasources {
		address, err := url.Parse(source.URL)
		if err != nil || source.Type != "prometheus" || services[address.Hostname()].Image == "" || address.Port() != "9090" {
			t.Errorf("Grafana reads %+v: %v", source, err)
		}
	}
	var dashboards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	readYAML(t, "grafana/dashboards.yml", &dashboards)
	if len(sources.Datasources) != 1 || len(dashboards.Providers) != 1 {
		t.Fatalf("got %+v and %+v", sources, dashboards)
	}
	expectMount("grafana:/etc/grafana/provisioning/datasources/pushfx.yml", "./grafana/datasources.yml")
	expectMount("grafana:/etc/grafana/provisioning/dashboards/pushfx.yml", "./grafana/dashboards.yml")
	expectMount("grafana:"+path.Join(dashboards.Providers[0].Options.Path, "dashboard.json"), "./dashboard.json")
	expectMount("grafana:"+services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"], "./dashboard.json")
}

// A counter with labels is exported from its first event on, so the test asks the registry and not /metrics: it refuses
// a metric with a name that it has.
func TestTheHostHasTheMetricsOfDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	memory, err := startEmbedded()
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	cfg, err := parseFlags([]string{"-redis-mode=standalone", "-redis=" + memory.Addr(), "-data=" + dataFile(t)})
	if err != nil {
		t.Fatal(err)
	}
	cfg.module.DeliveryMetrics.NamedGateways = []string{"https://push.example.org"} // without these, one panel is empty
	var metrics *prometheus.Registry
	if err := fx.New(homeserver(cfg, openDataOf(t), zap.NewNop(), new(buffer)), fx.Populate(&metrics)).Err(); err != nil {
		t.Fatal(err)
	}
	part := regexp.MustCompile(`_(bucket|count|sum)$`)
	names := map[string]bool{}
	for _, file := range []string{"dashboard.json", "alerts.yml"} {
		for _, name := range regexp.MustCompile(`\bpushfx_[a-z_]+`).FindAllString(readFile(t, filepath.Join(operationsFolder, file)), -1) {
			names[part.ReplaceAllString(name, "")] = true
		}
	}
	for name := range names {
		if err := metrics.Register(prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "Not the host's."})); err == nil {
			t.Errorf("the host has no metric %s", name)
		}
	}
	if len(names) < 20 {
		t.Errorf("found only %d metrics", len(names))
	}
}
