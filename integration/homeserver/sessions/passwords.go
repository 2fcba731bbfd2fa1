package sessions

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"runtime"
	"time"
)

// DefaultPassword is the password of every user until they change it.
const DefaultPassword = "demo"

// The parameters of new password hashes. A stored hash contains its own parameters. A real host needs 600,000
// iterations or more.
const (
	passwordIterations = 100_000
	passwordSaltBytes  = 16
)

// passwords hashes passwords. A hash occupies a core for tens of milliseconds, so at most
// half of the cores compute hashes at a time.
type passwords struct {
	slots chan struct{} // semaphore with a place for each hash in progress
	wait  time.Duration // longest wait for a slot
}

func newPasswords(wait time.Duration) *passwords {
	return &passwords{make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), wait}
}

// passwordHash is a stored password: its PBKDF2 with HMAC-SHA-256.
type passwordHash struct {
	Iterations int    `json:"iterations"`
	Salt       []byte `json:"salt"`
	Key        []byte `json:"key"`
}

// hash returns the stored form of a password. Errors: [ErrBusy].
func (p *passwords) hash(ctx context.Context, password string) (stored []byte, err error) {
	hash := passwordHash{Iterations: passwordIterations, Salt: make([]byte, passwordSaltBytes)}
	_, _ = rand.Read(hash.Salt) // never fails
	if hash.Key, err = p.derive(ctx, hash, password); err != nil {
		return nil, err
	}
	return json.Marshal(hash)
}

// check compares a password with the stored hash, or with the default password if no hash is stored. Errors: [ErrBusy].
func (p *passwords) check(ctx context.Context, password, stored string) (bool, error) {
	if stored == "" {
		return subtle.ConstantTimeCompare([]byte(password), []byte(DefaultPassword)) == 1, nil
	}
	var hash passwordHash
	if err := json.Unmarshal([]byte(stored), &hash); err != nil {
		return false, fmt.Errorf("stored password: %w", err)
	}
	key, err := p.derive(ctx, hash, password)
	return err == nil && subtle.ConstantTimeCompare(key, hash.Key) == 1, err
}

// derive waits a limited time for a slot, then computes the hash.
func (p *passwords) derive(ctx context.Context, h passwordHash, password string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return nil, ErrBusy
	}
	return pbkdf2.Key(sha256.New, password, h.Salt, h.Iterations, sha256.Size)
}
