package stored_test

import (
	"fmt"

	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

// A host's own store reads an event, changes its rules and writes it.
func ExampleReadEvent() {
	const text = `{"type":"m.push_rules","content":{"global":{"room":[]},"org.example.note":1}}`
	event, err := stored.ReadEvent(text)
	if err != nil {
		panic(err)
	}
	draft := pushrule.Draft{Actions: []pushrule.Action{`"notify"`}}
	if err := event.Rules.Put(pushrule.Room, "!lobby:example.org", draft, pushrule.Position{}); err != nil {
		panic(err)
	}
	fmt.Println(event.Text(stored.Revision{}))
	// Output:
	// {"type":"m.push_rules","content":{"global":{"override":[],"content":[],"room":[{"rule_id":"!lobby:example.org","default":false,"enabled":true,"actions":["notify"]}],"sender":[],"underride":[]},"org.example.note":1}}
}
