package smtp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// line is a line of mails to a server that takes them one after the other on each connection.
type line struct {
	*testing.T
	p      *places
	atOnce atomic.Int64
}

func newLine(t *testing.T, most int) *line { return &line{T: t, p: newPlaces(most)} }

// send sends a mail that the server takes in a time.
func (l *line) send(domain string, takes time.Duration) error {
	ctx, cancel := context.WithTimeout(l.Context(), time.Minute)
	defer cancel()
	ctx, place, err := l.p.begin(ctx, domain)
	if err != nil {
		return err
	}
	if n := l.atOnce.Add(1); n > int64(l.p.most) {
		l.Errorf("%d at once", n)
	}
	select {
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(takes):
	}
	l.atOnce.Add(-1)
	l.p.end(place, err == nil)
	return err
}

// late sends a mail, and returns how much longer than its own time it took.
func (l *line) late(domain string, takes time.Duration) time.Duration {
	l.Helper()
	began := time.Now()
	if err := l.send(domain, takes); err != nil {
		l.Errorf("a mail to %s: %v", domain, err)
	}
	return time.Since(began) - takes
}

// A server takes mails in a second, or in five, and is silent about some recipients.
func TestASilentServerDelaysOthersBySeconds(t *testing.T) {
	const most = 8
	for _, test := range []struct {
		takes    time.Duration // of a mail
		isKnown  bool          // a mail was accepted before
		silent   int
		patience time.Duration
	}{
		{50 * time.Millisecond, true, 0, leastPatience}, {50 * time.Millisecond, true, 64, leastPatience},
		{5 * time.Second, true, 16, newPatience}, {50 * time.Millisecond, false, 16, newPatience},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t, most)
				if test.isKnown {
					l.late("known", test.takes)
				}
				for i := range test.silent {
					go func() {
						if err := l.send(fmt.Sprint("silent", i), time.Hour); !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("a mail that the server is silent about ends with %v", err)
						}
					}()
				}
				synctest.Wait()
				if got, most := l.late("new", test.takes), time.Duration(test.silent/(most*3/4)+1)*test.patience; got > most {
					t.Errorf("a mail to a new domain comes %v late, want at most %v", got, most)
				}
				if got := l.late("new", test.takes); got > 0 {
					t.Errorf("the next one comes %v late", got)
				}
				synctest.Wait()
				time.Sleep(2 * time.Minute)
			})
		})
	}
}

// The server takes a mail to some domains in half a minute, and they get one after the other.
func TestSlowDomainsDelayNoOther(t *testing.T) {
	for _, slow := range []int{30, 300} {
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t, 8)
				l.late("quick", 50*time.Millisecond)
				ctx, stop := context.WithCancel(t.Context())
				var taken atomic.Int64
				for i := range slow {
					go func() {
						for ctx.Err() == nil {
							if l.send(fmt.Sprint("slow", i), 30*time.Second) == nil {
								taken.Add(1)
							}
							time.Sleep(time.Minute)
						}
					}()
				}
				var quick, unknown []time.Duration
				for i := range 500 {
					time.Sleep(2700 * time.Millisecond)
					quick = append(quick, l.late("quick", 50*time.Millisecond))
					if i > 200 {
						unknown = append(unknown, l.late(fmt.Sprint("new", i), 50*time.Millisecond))
					}
				}
				if got := slices.Max(quick); got > 0 {
					t.Errorf("a mail to a quick domain comes %v late", got)
				}
				if got := slices.Max(unknown); got > 3*time.Second {
					t.Errorf("a mail to a new domain comes %v late", got)
				}
				if got := taken.Load(); got < 30 {
					t.Errorf("%d mails to slow domains are taken", got)
				}
				stop()
				time.Sleep(3 * time.Minute)
			})
		})
	}
}

// A domain is slow as long as its last mail was.
func TestASlowDomainBecomesQuick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		for _, takes := range []time.Duration{50 * time.Millisecond, 30 * time.Second, 50 * time.Millisecond} {
			l.late("other", takes)
		}
		go func() { _ = l.send("slow", time.Hour) }()
		synctest.Wait()
		if got := l.late("other", 0); got > newPatience {
			t.Errorf("a mail comes %v late", got)
		}
	})
}

// Many domains are no reason to keep them all.
func TestTheNumberOfKnownDomainsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 8)
		for i := range maxDomains + 100 {
			l.late(fmt.Sprint(i), 0)
		}
		if got := len(l.p.domains); got > maxDomains {
			t.Errorf("%d domains are known", got)
		}
	})
}

// A single connection is enough for all, and a server that became slow loses no mail by it.
func TestAServerThatBecomesSlowTakesAllMails(t *testing.T) {
	for _, most := range []int{1, 8} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t, most)
				for range 20 {
					l.late("example.org", 50*time.Millisecond)
				}
				ctx, stop := context.WithCancel(t.Context())
				var taken [4]atomic.Int64
				for i := range taken {
					go func() {
						for ctx.Err() == nil {
							if l.send(fmt.Sprint("domain", i), 5*time.Second) == nil {
								taken[i].Add(1)
							}
							time.Sleep(20 * time.Second)
						}
					}()
				}
				time.Sleep(10 * time.Minute)
				for i := range taken {
					if got := taken[i].Load(); got < 5 {
						t.Errorf("%d mails to a domain are taken", got)
					}
				}
				stop()
				time.Sleep(2 * time.Minute)
			})
		})
	}
}
