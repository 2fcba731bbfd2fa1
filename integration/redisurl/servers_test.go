package redisurl_test

import (
	"testing"

	"github.com/pushfx/pushfx/integration/redisurl"
)

func TestFlagsSayWhereTheRedisIs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		mode          redisurl.Mode
		where, master string
		want          string // as told to the user
		login, own    redisurl.Login
		database      int
	}{
		{
			name: "plain", mode: redisurl.Standalone, where: "127.0.0.1:6379",
			want: "standalone at 127.0.0.1:6379",
		},
		{
			name: "URL", mode: redisurl.Standalone, where: "redis://user:p%2Fw@example.org/3",
			want: "standalone at example.org:6379", login: redisurl.Login{"user", "p/w"}, database: 3,
		},
		{
			name: "URL of an IPv6 address", mode: redisurl.Standalone, where: "redis://:pw@[::1]:7000/",
			want: "standalone at [::1]:7000", login: redisurl.Login{"", "pw"},
		},
		{
			name: "TLS", mode: redisurl.Standalone, where: "rediss://example.org?skip_verify=true",
			want: "standalone at example.org:6379, with TLS",
		},
		{
			name: "cluster", mode: redisurl.Cluster, where: "a:1,b:2",
			want: "cluster at a:1, b:2",
		},
		{
			name: "cluster URL", mode: redisurl.Cluster, where: "redis://user:pw@a:1?addr=b:2&addr=c:3",
			want: "cluster at a:1, b:2, c:3", login: redisurl.Login{"user", "pw"},
		},
		{
			name: "sentinels", mode: redisurl.Sentinel, where: "a:1,b:2",
			want: "sentinel at a:1, b:2, master mymaster",
		},
		{
			name: "sentinels, named master", mode: redisurl.Sentinel, where: "a:1", master: "m",
			want: "sentinel at a:1, master m",
		},
		{
			name: "sentinel URL", mode: redisurl.Sentinel, where: "redis://s:spw@a/2?addr=b:2&master_name=m&username=user&password=pw",
			want: "sentinel at a:26379, b:2, master m", login: redisurl.Login{"user", "pw"}, own: redisurl.Login{"s", "spw"}, database: 2,
		},
		{
			name: "sentinel URL and flag", mode: redisurl.Sentinel, where: "redis://a?master_name=m", master: "flag",
			want: "sentinel at a:26379, master flag",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := redisurl.Parse(test.mode, test.where, test.master)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != test.want || got.Login != test.login || got.Sentinels != test.own || got.Database != test.database {
				t.Errorf("got %+v, want %+v", got, test)
			}
		})
	}
}
