package redisurl

import "testing"

type login struct{ user, password string }

// logins returns the logins for the data's servers and for the sentinels.
func (s Servers) logins() (data, own login) {
	switch s.Mode {
	case Sentinel:
		return login{s.sentinels.Username, s.sentinels.Password}, login{s.sentinels.SentinelUsername, s.sentinels.SentinelPassword}
	case Cluster:
		return login{s.cluster.Username, s.cluster.Password}, login{}
	}
	return login{s.single.Username, s.single.Password}, login{}
}

func TestFlagsNameTheRedis(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		mode          Mode
		where, master string
		want          string // String
		login, own    login
		database      int
	}{
		{
			name: "plain", mode: Standalone, where: "127.0.0.1:6379",
			want: "standalone at 127.0.0.1:6379",
		},
		{
			name: "URL", mode: Standalone, where: "redis://user:p%2Fw@example.org/3",
			want: "standalone at example.org:6379", login: login{"user", "p/w"}, database: 3,
		},
		{
			name: "URL of an IPv6 address", mode: Standalone, where: "redis://:pw@[::1]:7000/",
			want: "standalone at [::1]:7000", login: login{"", "pw"},
		},
		{
			name: "TLS", mode: Standalone, where: "rediss://example.org?skip_verify=true",
			want: "standalone at example.org:6379, with TLS",
		},
		{
			name: "option", mode: Standalone, where: "redis://example.org?pool_size=7",
			want: "standalone at example.org:6379",
		},
		{
			name: "cluster", mode: Cluster, where: "a:1,b:2",
			want: "cluster at a:1, b:2",
		},
		{
			name: "cluster URL", mode: Cluster, where: "redis://user:pw@a:1?addr=b:2&addr=c:3",
			want: "cluster at a:1, b:2, c:3", login: login{"user", "pw"},
		},
		{
			name: "sentinels", mode: Sentinel, where: "a:1,b:2",
			want: "sentinel at a:1, b:2, master mymaster",
		},
		{
			name: "sentinels, named master", mode: Sentinel, where: "a:1", master: "m",
			want: "sentinel at a:1, master m",
		},
		{
			name: "sentinel URL", mode: Sentinel, where: "redis://s:spw@a:26379/2?addr=b:2&master_name=m&username=user&password=pw",
			want: "sentinel at a:26379, b:2, master m", login: login{"user", "pw"}, own: login{"s", "spw"}, database: 2,
		},
		{
			name: "sentinel URL and flag", mode: Sentinel, where: "redis://a:26379?master_name=m", master: "flag",
			want: "sentinel at a:26379, master flag",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse(test.mode, test.where, test.master)
			if err != nil {
				t.Fatal(err)
			}
			data, own := got.logins()
			if got.String() != test.want || data != test.login || own != test.own || got.single.DB+got.sentinels.DB != test.database {
				t.Errorf("got %+v, want %+v", got, test)
			}
		})
	}
}
