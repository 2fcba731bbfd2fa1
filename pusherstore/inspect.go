package pusherstore

import (
	"errors"
	"slices"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/pusher"
)

// Hash is what a user's hash holds. Where [ReadHash] could not read all of it,
// to the service it is unreadable as a whole.
type Hash struct {
	Pushers    pusher.List // those that can be read
	Unreadable []string    // the fields that cannot; they hold pushkeys
	Cause      error       // of the first of them, fit to be shown
	Stamp      commit.Stamp
}

// ReadHash reads a user's hash, as far as that is possible.
func ReadHash(fields map[string]string) (h Hash) {
	var pushers []pusher.Pusher
	for field, text := range fields {
		if field == stampField {
			continue
		}
		p, err := readField(field, text)
		if err == nil {
			pushers = append(pushers, p)
			continue
		}
		h.Unreadable = append(h.Unreadable, field)
		if field == slices.Min(h.Unreadable) {
			h.Cause = pusher.Unreadable(err)
		}
	}
	slices.Sort(h.Unreadable)
	h.Pushers, h.Stamp = pusher.NewList(pushers...), commit.ReadStamp(fields[stampField])
	return h
}

// readField reads the pusher in a field.
func readField(field, text string) (pusher.Pusher, error) {
	p, err := pusher.ReadStored(text)
	if err == nil && p.Field() != field {
		err = errors.New("the field is not the pusher's key")
	}
	return p, err
}

// ReadClaims reads stored claims. Errors: [pusher.Unreadable].
func ReadClaims(text string) (pusher.Claims, error) {
	s, err := parseClaims(text)
	if err != nil {
		return pusher.Claims{}, err
	}
	return s.Value(), nil
}
