package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Each file testdata/*.txtar is a scenario: requests with their answers, in the
// txtar format. An empty line ends a section; text after it is a comment.
//
//	-- PUT /_matrix/client/v3/pushrules/global/room/!a:b as @bob:example.org --
//	{"actions": []}
//	-- 200 --
//	{}
//
// @alice:example.org sends requests without "as"; "as nobody" sends no token.
// The comparison of answers respects the order of members and ignores spacing.
// At the start Alice has the server's default rules, other users have no data.
func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			scenario := sections(string(text))
			if len(scenario) == 0 || len(scenario)%2 != 0 {
				t.Fatalf("%d sections, want pairs of a request and an answer", len(scenario))
			}
			s := newService(t)
			s.host.do(alice, "GET", v3+"/pushrules/", "")
			for pair := scenario; len(pair) > 0; pair = pair[2:] {
				if err := s.play(pair[0], pair[1]); err != nil {
					t.Errorf("-- %s --\n%v", pair[0].name, err)
				}
			}
		})
	}
}

type section struct{ name, body string }

var sectionName = regexp.MustCompile(`(?m)^-- (.+) --$`)

// sections returns the sections of a txtar file, each up to its first empty line.
func sections(text string) []section {
	var list []section
	names := sectionName.FindAllStringSubmatch(text, -1)
	for i, body := range sectionName.Split(text, -1)[1:] {
		body, _, _ = strings.Cut(body+"\n", "\n\n")
		list = append(list, section{names[i][1], strings.TrimSpace(body)})
	}
	return list
}

func (s *service) play(request, want section) error {
	line, user, given := strings.Cut(request.name, " as ")
	switch {
	case !given:
		user = alice
	case user == "nobody":
		user = ""
	}
	method, path, _ := strings.Cut(line, " ")
	got, err := s.host.try(context.Background(), user, method, path, request.body)
	if err != nil {
		return err
	}
	status, body := strconv.Itoa(got.status), compact(got.body)
	if wantBody := compact(want.body); status != want.name || body != wantBody {
		return fmt.Errorf(" got %s %s\nwant %s %s", status, body, want.name, wantBody)
	}
	return nil
}

func compact(text string) string {
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(text)); err != nil {
		return text
	}
	return b.String()
}
