package service_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/service"
)

// invitations has the tokens of pushers, which are "user number-of-the-invitation".
type invitations struct {
	list   func(mxid.UserID) pusher.List
	issued map[string]pusher.Pusher
	err    error
}

func (i *invitations) Invite(_ context.Context, user mxid.UserID, key pusher.Key) error {
	list := i.list(user)
	if p, _ := list.Pusher(key); p.IsInactive() {
		i.issued[fmt.Sprint(user, " ", len(i.issued))] = p
	}
	return i.err
}

func (i *invitations) ReadAckToken(user mxid.UserID, token string) (pusher.Digest, int64, bool) {
	p, found := i.issued[token]
	return p.Digest(), p.SetAt, found && token[:len(user)] == string(user)
}

func TestATokenActivatesAPusherForADay(t *testing.T) {
	t.Parallel()
	m, now := newMemory(), time.UnixMicro(1_700_000_000_000_000)
	i := &invitations{issued: map[string]pusher.Pusher{}}
	policy := pusher.DefaultPolicy()
	policy.Kinds = pusher.Kinds{pusher.WebPush: policy.CheckWebPush}
	stores := module.Stores{Rules: rulesOf(module.Content{}), Pushers: m, Pushkeys: m.index(), Now: func() time.Time { return now }}
	s := service.New(stores, nil, service.Options{Policy: policy, Activation: i})
	i.list = func(user mxid.UserID) pusher.List {
		list, err := s.Pushers().List(t.Context(), user)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	p := ownPusher("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4", pusher.WebPush, "BROWSER")
	p.Data, p.Activated = `{"url":"https://push/1","auth":"BTBZMqHH6r4Tts7J_aSIgg"}`, true // which no client can set
	set := func(user mxid.UserID, want error) {
		t.Helper()
		if err := s.Pushers().Set(t.Context(), user, p, pusher.RemoveOthers); !errors.Is(err, want) {
			t.Errorf("got %v", err)
		}
	}
	wantActive := func(user mxid.UserID, want bool) {
		t.Helper()
		list := i.list(user)
		if held, found := list.Pusher(p.Key); !found || held.Activated != want {
			t.Errorf("got %+v, want active: %v", held, want)
		}
	}
	activate := func(user mxid.UserID, token string, want fault.Kind) {
		t.Helper()
		err := s.Pushers().Activate(t.Context(), user, p.AppID, token)
		if want == "" && err != nil || want != "" && fault.KindOf(err) != want {
			t.Errorf("%s: got %v, want %s", token, err, want)
		}
	}
	activate(alice, "", fault.NotFound)
	set(alice, nil)
	now = now.Add(24*time.Hour + time.Second)
	activate(alice, "@alice:example.org 0", fault.ExpiredAckToken)
	set(alice, nil)
	wantActive(alice, false)
	activate(alice, "@alice:example.org 0", fault.UnknownAckToken)
	now = now.Add(24*time.Hour - time.Second)
	activate(alice, "@alice:example.org 1", "")
	now = now.Add(time.Hour)
	activate(alice, "@alice:example.org 1", "") // again
	wantActive(alice, true)
	p.Data = `{"auth":"BTBZMqHH6r4Tts7J_aSIgg","url":"https://push/1","default_payload":{"a":1}}`
	set(alice, nil) // the same subscription
	wantActive(alice, true)
	p.Data = `{"auth":"BTBZMqHH6r4Tts7J_aSIgg","url":"https://push/2"}`
	set(alice, nil)
	wantActive(alice, false)
	set(bob, nil) // takes the pushkey
	activate(bob, "@alice:example.org 2", fault.UnknownAckToken)
	wantActive(bob, false)
	if list := i.list(alice); list.Len() > 0 {
		t.Errorf("alice has %v", list)
	}
	i.err = errors.New("the queue is away")
	set(bob, i.err)
	issued := len(i.issued)
	p.Pushkey = "BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8"
	if _, err := s.Host(s.Rules()).Import(t.Context(), alice, module.Import{Pushers: []pusher.Pusher{p}}, module.StoreImport); err != nil || len(i.issued) > issued {
		t.Errorf("got %v, %d invitations", err, len(i.issued)-issued)
	}
	wantActive(alice, true)
}
