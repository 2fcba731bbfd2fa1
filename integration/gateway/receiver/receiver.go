// Package receiver is a push gateway that delivers nothing. It tells what arrives,
// and makes trouble as it is asked to: for trying delivery, and for its tests.
package receiver

import (
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/retry"
)

// Path is where notifications are posted to (Matrix specification, "Push Gateway
// API").
const Path = "/_matrix/push/v1/notify"

// maxBodyBytes is as large as a notification can be at most: an event of 64 KiB,
// and what it says of the room.
const maxBodyBytes = 256 << 10

// Trouble is what a gateway does other than to answer at once that nothing is
// rejected. The zero value is nothing.
type Trouble struct {
	Status     int           // answered instead of 200; 0 is none
	RetryAfter time.Duration // told with every status but 200; 0 is none
	Fail       float64       // of all notifications, how many are answered with 502; 0 to 1
	Delay      time.Duration // before the answer
	Reject     []string      // pushkeys, which are rejected
	Hang       bool          // never answer
}

// Receiver is a push gateway. It is safe for concurrent use.
type Receiver struct {
	arrived func(Notification)

	mu      sync.Mutex
	trouble Trouble
}

// New returns a gateway that calls arrived with each notification, when it has
// been answered, before the answer is sent: from many goroutines.
func New(arrived func(Notification)) *Receiver { return &Receiver{arrived: arrived} }

// Make has the gateway make trouble from now on.
func (r *Receiver) Make(t Trouble) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble = t
}

func (r *Receiver) current() Trouble {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trouble
}

// ServeHTTP implements [http.Handler].
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	n := Notification{Began: time.Now()}
	if request.URL.Path != Path {
		refuse(w, http.StatusNotFound, "M_UNRECOGNIZED", "Unrecognized request.")
		return
	}
	if request.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, http.StatusMethodNotAllowed, "M_UNRECOGNIZED", "Method not allowed.")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxBodyBytes))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		refuse(w, http.StatusRequestEntityTooLarge, "M_TOO_LARGE", "The notification is too large.")
		return
	}
	if err != nil {
		return // the client is gone
	}
	n.Body = body
	if err := n.read(); err != nil {
		refuse(w, http.StatusBadRequest, "M_BAD_JSON", "The body is no notification with a device.")
		return
	}
	r.answer(w, request, n)
}

// answer answers as the trouble says, and tells of the notification.
func (r *Receiver) answer(w http.ResponseWriter, request *http.Request, n Notification) {
	trouble := r.current()
	if !pause(request, trouble) {
		r.tell(n) // with no status: it has got no answer
		return
	}
	n.Status = http.StatusOK
	if trouble.Status != 0 {
		n.Status = trouble.Status
	} else if rand.Float64() < trouble.Fail {
		n.Status = http.StatusBadGateway
	}
	if n.Status == http.StatusOK {
		n.Rejected = n.rejected(trouble.Reject)
		r.tell(n)
		writeJSON(w, http.StatusOK, map[string][]string{"rejected": n.Rejected})
		return
	}
	r.tell(n)
	if trouble.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(trouble.RetryAfter.Seconds())))
	}
	refuse(w, n.Status, "M_UNKNOWN", "The gateway was told to make trouble.")
}

// pause waits as long as the trouble says. It returns false if the client gives up
// before.
func pause(request *http.Request, trouble Trouble) bool {
	if trouble.Hang {
		<-request.Context().Done()
		return false
	}
	return retry.Sleep(request.Context(), trouble.Delay) == nil
}

func (r *Receiver) tell(n Notification) {
	n.Ended = time.Now()
	r.arrived(n)
}

func refuse(w http.ResponseWriter, status int, errcode, text string) {
	writeJSON(w, status, map[string]string{"errcode": errcode, "error": text})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}
