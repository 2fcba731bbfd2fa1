package handlers

import (
	"testing"
	"time"

	"go.uber.org/zap"
)

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	with := func(change func(*Config)) Config {
		c := DefaultConfig()
		change(&c)
		return c
	}
	for _, test := range []struct {
		name string
		cfg  Config
		want string // empty: valid
	}{
		{"defaults", DefaultConfig(), ""},
		{"smallest", Config{MaxBodyBytes: 1, MaxJSONDepth: 1, RequestTimeout: 1}, ""},
		{"deepest", with(func(c *Config) { c.MaxJSONDepth = 1000 }), ""},
		{"no body", with(func(c *Config) { c.MaxBodyBytes = 0 }), "MaxBodyBytes is 0, want at least 1"},
		{"no depth", with(func(c *Config) { c.MaxJSONDepth = 0 }), "MaxJSONDepth is 0, want 1 to 1000"},
		{"too deep", with(func(c *Config) { c.MaxJSONDepth = 1001 }), "MaxJSONDepth is 1001, want 1 to 1000"},
		{"no time", with(func(c *Config) { c.RequestTimeout = 0 }), "RequestTimeout is 0s, want above 0"},
		{"negative time", with(func(c *Config) { c.RequestTimeout = -time.Second }), "RequestTimeout is -1s, want above 0"},
		{"everything", Config{}, "MaxBodyBytes is 0, want at least 1\nMaxJSONDepth is 0, want 1 to 1000\nRequestTimeout is 0s, want above 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := text(test.cfg.Validate()); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			want := test.want
			if want != "" {
				want = "handlers: " + want
			}
			if _, err := NewServer(test.cfg, nil, zap.NewNop()); text(err) != want {
				t.Errorf("NewServer: got %q, want %q", text(err), want)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
