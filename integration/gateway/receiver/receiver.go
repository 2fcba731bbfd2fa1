// Package receiver is a push gateway that forwards nothing to devices. It reports each notification, and answers late,
// wrongly or not at all if a test asks for it.
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

// Path is the path for notifications (Matrix specification, "Push Gateway API").
const Path = "/_matrix/push/v1/notify"

// maxBodyBytes is enough for the largest notification: an event of 64 KiB and the texts about its room.
const maxBodyBytes = 256 << 10

// Trouble changes the answers of a gateway. The zero value answers at once and rejects
// nothing.
type Trouble struct {
	Status     int           // the status of answers; 0: 200
	RetryAfter time.Duration // the Retry-After of every status but 200; 0: none
	Fail       float64       // fraction of notifications that get a 502, from 0 to 1
	Delay      time.Duration // before the answer
	Reject     []string      // rejected pushkeys
	Hang       bool          // never answer
}

// Receiver is a push gateway. It is safe for concurrent use.
type Receiver struct {
	arrived func(Notification)

	mu      sync.Mutex
	trouble Trouble
}

// New returns a gateway that calls arrived with each notification, just before it sends the
// answer. Calls are concurrent.
func New(arrived func(Notification)) *Receiver { return &Receiver{arrived: arrived} }

// Make sets the trouble of all later answers.
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
		refuse(w, http.StatusBadRequest, "M_BAD_JSON", "The body is no notification with 1 to 100 devices.")
		return
	}
	r.answer(w, request, n)
}

// answer answers as trouble says, and reports the notification.
func (r *Receiver) answer(w http.ResponseWriter, request *http.Request, n Notification) {
	trouble := r.current()
	if !pause(request, trouble) {
		r.report(n) // without a status, because there is no answer
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
		r.report(n)
		writeJSON(w, http.StatusOK, map[string][]string{"rejected": n.Rejected})
		return
	}
	r.report(n)
	if trouble.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(trouble.RetryAfter.Seconds())))
	}
	refuse(w, n.Status, "M_UNKNOWN", "The gateway fails as configured.")
}

// pause waits as trouble says. It returns false if the client gives up.
func pause(request *http.Request, trouble Trouble) bool {
	if trouble.Hang {
		<-request.Context().Done()
		return false
	}
	return retry.Sleep(request.Context(), trouble.Delay) == nil
}

func (r *Receiver) report(n Notification) {
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
