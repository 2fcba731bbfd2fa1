package redisurl

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPasswordsComeFromTheURLAFileOrTheEnvironment(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("s3cret file\r\nmore\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	environment := map[string]string{
		PasswordVariable: "s3cret env", SentinelPasswordVariable: "s3cret sentinel env",
	}
	for _, test := range []struct {
		name        string
		args        []string
		environment map[string]string
		login, own  login
		err         string
	}{
		{name: "none", args: []string{"-redis", "a:1"}},
		{name: "URL", args: []string{"-redis", "redis://user:s3cret@a"}, environment: environment, login: login{user: "user", password: "s3cret"}},
		{name: "environment", args: []string{"-redis", "redis://user@a"}, environment: environment, login: login{user: "user", password: "s3cret env"}},
		{
			name: "file", args: []string{"-redis", "a:1", "-redis-password-file", file}, environment: environment,
			login: login{password: "s3cret file"},
		},
		{
			name: "sentinels", args: []string{"-redis-mode", "sentinel", "-redis", "a:1", "-redis-sentinel-password-file", file}, environment: environment,
			login: login{password: "s3cret env"}, own: login{password: "s3cret file"},
		},
		{
			name: "sentinels and environment", args: []string{"-redis-mode", "sentinel", "-redis", "a:1"}, environment: environment,
			login: login{password: "s3cret env"}, own: login{password: "s3cret sentinel env"},
		},
		{name: "two", args: []string{"-redis", "redis://:s3cret@a", "-redis-password-file", file}, err: "names another"},
		{name: "no file", args: []string{"-redis", "a:1", "-redis-password-file", file + "x"}, err: "-redis-password-file: open"},
		{name: "empty file", args: []string{"-redis", "a:1", "-redis-password-file", empty}, err: "empty"},
		{name: "sentinels that are none", args: []string{"-redis", "a:1", "-redis-sentinel-password-file", file}, err: "needs -redis-mode sentinel"},
		{name: "bad URL", args: []string{"-redis", "redis://user:s3cret%@a"}, err: "-redis: not understood"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var flags Flags
			set := flag.NewFlagSet("test", flag.ContinueOnError)
			flags.Add(set, Standalone, "standalone, sentinel or cluster")
			if err := set.Parse(test.args); err != nil {
				t.Fatal(err)
			}
			got, err := flags.Servers(func(name string) string { return test.environment[name] })
			data, own := got.logins()
			text := ""
			if err != nil {
				text = err.Error()
			}
			if (text == "") != (test.err == "") || !strings.Contains(text, test.err) || strings.Contains(text, "s3cret") {
				t.Errorf("got %q, want %q", text, test.err)
			}
			if data != test.login || own != test.own || strings.Contains(got.String(), "s3cret") {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestALoginIsHiddenInItsLine(t *testing.T) {
	t.Parallel()
	const text = "want a URL such as smtp://mail.example.org\ninvalid redis://user:p@ss@127.0.0.1:1, by admin@example.org"
	const want = "want a URL such as smtp://mail.example.org\ninvalid redis://***@example.org"
	if got := WithoutLogin(text); got != want {
		t.Errorf("got %q", got)
	}
}
