package smtp

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

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
				p, atOnce := &places{most: most}, atomic.Int64{}
				send := func(takes time.Duration) error {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					ctx, place, err := p.begin(ctx)
					if err != nil {
						return err
					}
					if n := atOnce.Add(1); n > most {
						t.Errorf("%d at once", n)
					}
					select {
					case <-ctx.Done():
						err = context.Cause(ctx)
					case <-time.After(takes):
					}
					atOnce.Add(-1)
					p.end(place, err == nil)
					return err
				}
				if test.isKnown && send(test.takes) != nil {
					t.Fatal("a mail is not sent")
				}
				for range test.silent {
					go func() {
						if err := send(time.Hour); !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("a mail that the server is silent about ends with %v", err)
						}
					}()
				}
				synctest.Wait()
				began := time.Now()
				if err := send(test.takes); err != nil {
					t.Error(err)
				}
				most := test.takes + time.Duration(test.silent/most)*test.patience
				if got := time.Since(began); got > most {
					t.Errorf("a mail takes %v, want at most %v", got, most)
				}
				began = time.Now()
				if err := send(test.takes); err != nil || time.Since(began) > test.takes+test.patience {
					t.Errorf("the next one takes %v, %v", time.Since(began), err)
				}
				synctest.Wait()
				time.Sleep(time.Minute)
			})
		})
	}
}

// A server takes mails to some recipients after 30 s, to others at once: these do not wait so long.
func TestSlowRecipientsDelayOthersBySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &places{most: 8}
		send := func(takes time.Duration) {
			ctx, place, err := p.begin(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			select {
			case <-ctx.Done():
				p.end(place, false)
			case <-time.After(takes):
				p.end(place, true)
			}
		}
		send(30 * time.Second)
		for range 3 {
			for range p.most {
				go send(30 * time.Second)
			}
			synctest.Wait()
			began := time.Now()
			if send(50 * time.Millisecond); time.Since(began) > newPatience+time.Second {
				t.Errorf("a mail takes %v", time.Since(began))
			}
			time.Sleep(time.Minute)
		}
	})
}
