package delivery

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// pushService is the push service of all browsers. It answers by the endpoint's last part, which is 201 by default.
type pushService struct {
	mu     sync.Mutex
	status map[string]int
	posts  []string // endpoint's last part and urgency
}

func (s *pushService) Post(_ context.Context, r module.GatewayRequest) (module.GatewayAnswer, error) {
	name := r.URL[len("https://push/"):]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posts = append(s.posts, name+" "+r.Header["Urgency"])
	return module.GatewayAnswer{Status: max(s.status[name], 201)}, nil
}

// setBrowser sets a pusher of web push.
func (w *world) setBrowser(user mxid.UserID, name string, isActive bool) (key pusher.Key) {
	point, _ := ecdh.P256().GenerateKey(rand.Reader)
	key = pusher.Key{AppID: "app", Pushkey: base64.RawURLEncoding.EncodeToString(point.PublicKey().Bytes())}
	data := fmt.Sprintf(`{"url":"https://push/%s","auth":"BTBZMqHH6r4Tts7J_aSIgg"}`, name)
	w.setPusher(user, pusher.Pusher{Key: key, Kind: pusher.WebPush, Activated: isActive, Data: data})
	return key
}

func browsersInBubble(t *testing.T, test func(*world, *pushService, *Delivery)) {
	t.Helper()
	inBubble(t, func(w *world) {
		w.webPush = webpush.Config{Key: webpush.NewKey(), Subject: "mailto:a@example.org"}
		s := &pushService{status: map[string]int{}}
		d, _ := w.hostOn(w.queue, s)
		test(w, s, d)
	})
}

// The push that activates is sent as any other: it waits for a service that fails. Nothing else is sent or waits before.
func TestAnInactivePusherIsInvitedAlone(t *testing.T) {
	browsersInBubble(t, func(w *world, s *pushService, d *Delivery) {
		key := w.setBrowser(name1, "new", false)
		w.notify(d, 1, "!r:h", name1)
		if w.queue.Waiting() != 0 {
			t.Fatal("a notification waits")
		}
		s.status["new"] = 500
		for range 3 { // the client sets the pusher again
			if err := d.Invite(t.Context(), name1, key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Minute)
		}
		synctest.Wait()
		if len(s.posts) < 3 || w.queue.Waiting() > 3 {
			t.Errorf("%d posts, %d wait", len(s.posts), w.queue.Waiting())
		}
		s.status["new"], s.posts = 201, nil
		w.wait(20*time.Minute, func() bool { return w.queue.Waiting() == 0 })
		synctest.Wait()
		if len(s.posts) != 1 || s.posts[0] != "new high" {
			t.Errorf("got %q", s.posts)
		}
		if err := d.Invite(t.Context(), "@other:h", key); err != nil || w.queue.Waiting() != 0 {
			t.Errorf("another user's pusher: %v, %d wait", err, w.queue.Waiting())
		}
	})
}

// Apple says 403 for a wrong Subject and for a dead subscription: only if others are taken, the subscription is removed.
func TestAForbiddenSubscriptionIsRemovedWhileOthersAreTaken(t *testing.T) {
	for _, othersAreTaken := range []bool{true, false} {
		browsersInBubble(t, func(w *world, s *pushService, d *Delivery) {
			w.setBrowser(name1, "dead", true)
			w.setBrowser("@other:h", "well", true)
			s.status["dead"] = 403
			for n := range 100 {
				users := []mxid.UserID{name1}
				if othersAreTaken {
					users = append(users, "@other:h")
				}
				w.notify(d, n, "!r:h", users...)
				time.Sleep(time.Minute)
				if synctest.Wait(); n < 59 && len(w.removed) > 0 {
					t.Fatalf("removed after %d minutes", n)
				}
			}
			synctest.Wait()
			if isRemoved := len(w.removed) == 1; isRemoved != othersAreTaken {
				t.Errorf("others are taken: %v; removed %v", othersAreTaken, w.removed)
			}
		})
	}
}

// The hour begins with the first 403, not with a failure of another kind before it.
func TestOnlyAnHourOfForbiddenRemoves(t *testing.T) {
	browsersInBubble(t, func(w *world, s *pushService, d *Delivery) {
		w.setBrowser(name1, "fails", true)
		w.setBrowser("@other:h", "well", true)
		s.status["fails"] = 500
		for n := range 200 {
			if n == 90 {
				s.status["fails"] = 403
			}
			w.notify(d, n, "!r:h", name1, "@other:h")
			time.Sleep(time.Minute)
			if synctest.Wait(); n < 149 && len(w.removed) > 0 {
				t.Fatalf("removed after %d minutes of 403", n-89)
			}
		}
		if len(w.removed) != 1 {
			t.Errorf("removed %v", w.removed)
		}
	})
}
