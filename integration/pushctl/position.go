package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// position is how far a scan is, kept in a file if there is one. It holds a
// cursor for each master.
type position struct {
	file string

	Command string                  `json:"command"` // what is to be gone on with
	Layout  string                  `json:"layout"`  // which master had which slots at the start
	Masters map[string]*masterState `json:"masters"` // by the id of their run
	Found   int64                   `json:"found"`   // how many keys were the module's
	Extra   any                     `json:"extra"`   // what the command counted
}

// masterState is how far a scan is on one master.
type masterState struct {
	Address string `json:"address"`
	Cursor  uint64 `json:"cursor,string"`
	Ended   bool   `json:"ended"`
}

// newPosition returns the position at the start or, where the file has one, the
// one that was left; extra points to what the command counts. A file that is of
// another command is refused.
func newPosition(file, command string, extra any) (*position, error) {
	p := &position{file: file, Command: command, Extra: extra, Masters: map[string]*masterState{}}
	if file == "" {
		return p, nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("%s is not the state of a command: %w", file, err)
	}
	if p.Command != command {
		return nil, fmt.Errorf("%s is the state of another call, %q: remove it, or make that call", file, p.Command)
	}
	return p, nil
}

// isNew reports whether nothing was done yet.
func (p *position) isNew() bool { return len(p.Masters) == 0 }

// begin makes the position one of these masters. A master that was restarted or
// replaced has none of its own, and begins anew.
func (p *position) begin(masters []master, layout string) {
	if p.isNew() {
		p.Layout = layout
	}
	there := make(map[string]*masterState, len(masters))
	for _, m := range masters {
		there[m.id] = &masterState{Address: m.client.Options().Addr}
		if before, found := p.Masters[m.id]; found {
			there[m.id] = before
		}
	}
	p.Masters = there
}

// isOf reports whether the position is of these masters.
func (p *position) isOf(masters []master) bool {
	for _, m := range masters {
		if _, found := p.Masters[m.id]; !found {
			return false
		}
	}
	return len(masters) == len(p.Masters)
}

func (p *position) of(m master) (cursor uint64, ended bool) {
	s := p.Masters[m.id]
	return s.Cursor, s.Ended
}

// move moves the position behind a page with some keys of the module's.
func (p *position) move(m master, cursor uint64, found int64) {
	*p.Masters[m.id] = masterState{m.client.Options().Addr, cursor, cursor == 0}
	p.Found += found
}

// isKept reports whether there is a file to go on from.
func (p *position) isKept() bool { return p.file != "" }

// remedy says how to go on.
func (p *position) remedy() string {
	if p.isKept() {
		return "the same call goes on where it stopped, from " + p.file
	}
	return "the next call begins anew; with -state FILE it would go on"
}

// save writes the file, whole or not at all.
func (p *position) save() error {
	if !p.isKept() {
		return nil
	}
	text, err := json.MarshalIndent(p, "", "\t")
	if err != nil {
		return err
	}
	return writeFile(p.file, text)
}

// remove removes the file.
func (p *position) remove() error {
	if !p.isKept() {
		return nil
	}
	if err := os.Remove(p.file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeFile puts a file in the place of another, for its owner's eyes.
func writeFile(name string, text []byte) error {
	next, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = next.Write(text)
	if err = errors.Join(err, next.Close()); err == nil {
		err = os.Rename(next.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}
