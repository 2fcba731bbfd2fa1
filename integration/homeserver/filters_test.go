package main

import (
	"fmt"
	"strings"
	"testing"
)

const filterPath = v3 + "/user/@alice:localhost/filter"

func TestFilters(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	post := func(body string) string {
		var stored struct {
			FilterID string `json:"filter_id"`
		}
		d.object("POST", filterPath, "demo-alice", body, &stored)
		return stored.FilterID
	}
	const text = `{"room":{"timeline":{"limit":8},"x":1.50}}`
	id := post(text)
	d.expect("GET", filterPath+"/"+id, "demo-alice", "", 200, text)
	if again := post(" " + strings.ReplaceAll(text, ":", ": ")); again != id {
		t.Errorf("the same filter is %q and %q", id, again)
	}
	if other := post(`{}`); other == id {
		t.Error("two filters have the same id")
	}
	const forbidden = `{"errcode":"M_FORBIDDEN","error":"Cannot access what belongs to other users."}`
	d.expect("GET", filterPath+"/"+id, "demo-bob", "", 403, forbidden)
	d.expect("POST", filterPath, "demo-bob", "{}", 403, forbidden)
	const absent = `{"errcode":"M_NOT_FOUND","error":"Filter not found."}`
	d.expect("GET", filterPath+"/nope", "demo-alice", "", 404, absent)
	d.expect("GET", v3+"/user/%40bob%3Alocalhost/filter/"+id, "demo-bob", "", 404, absent)
	for _, refused := range []struct {
		body    string
		status  int
		errcode string
	}{
		{`[]`, 400, "M_BAD_JSON"},
		{`{"account_data":1}`, 400, "M_BAD_JSON"},
		{`{"account_data":{"types":"m.push_rules"}}`, 400, "M_BAD_JSON"},
		{`{"account_data":{"not_types":[1]}}`, 400, "M_BAD_JSON"},
		{`{`, 400, "M_NOT_JSON"},
		{``, 400, "M_NOT_JSON"},
		{`{"x":"` + strings.Repeat("x", maxFilterBytes) + `"}`, 413, "M_TOO_LARGE"},
	} {
		got := d.do("POST", filterPath, "demo-alice", refused.body)
		if got.status != refused.status || !strings.Contains(got.body, refused.errcode) {
			t.Errorf("%.50s: got %d %s", refused.body, got.status, got.body)
		}
	}
	for i := range 100 - 2 {
		post(fmt.Sprintf(`{"n":%d}`, i))
	}
	d.expect("POST", filterPath, "demo-alice", `{"one":"more"}`, 400, `{"errcode":"M_INVALID_PARAM","error":"Too many filters."}`)
	post(text) // one that is known
}

func TestWhatFiltersLetPass(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`{}`:                                                            true,
		`{"room":{"account_data":{"types":[]}}}`:                        true,
		`{"account_data":{}}`:                                           true,
		`{"account_data":null}`:                                         true,
		`{"account_data":{"types":null}}`:                               true,
		`{"account_data":{"types":[]}}`:                                 false,
		`{"account_data":{"types":["m.push_rules"]}}`:                   true,
		`{"account_data":{"types":["m.direct"]}}`:                       false,
		`{"account_data":{"types":["m.direct","m.push_rules"]}}`:        true,
		`{"account_data":{"types":["*"]}}`:                              true,
		`{"account_data":{"types":["m.*"]}}`:                            true,
		`{"account_data":{"types":["*.push_rules"]}}`:                   true,
		`{"account_data":{"types":["m*push*rules"]}}`:                   true,
		`{"account_data":{"types":["m*push*push*"]}}`:                   false,
		`{"account_data":{"types":["m.push_rules*"]}}`:                  true,
		`{"account_data":{"types":["m.push_rule"]}}`:                    false,
		`{"account_data":{"types":["m.push_rules*s"]}}`:                 false,
		`{"account_data":{"types":["org.*"]}}`:                          false,
		`{"account_data":{"types":["m?push_rules"]}}`:                   false,
		`{"account_data":{"not_types":["m.push_rules"]}}`:               false,
		`{"account_data":{"not_types":["m.push*"]}}`:                    false,
		`{"account_data":{"not_types":["m.direct"]}}`:                   true,
		`{"account_data":{"types":["*"],"not_types":["m.push_rules"]}}`: false,
		`{"account_data":{"senders":["@bob:x"],"not_senders":["*"]}}`:   true,
	} {
		var f filter
		if err := parseObject([]byte(text), &f); err != nil || f.allows("m.push_rules") != want {
			t.Errorf("%s: got %v, %v", text, f.allows("m.push_rules"), err)
		}
	}
}
