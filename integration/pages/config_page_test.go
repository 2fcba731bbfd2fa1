package pages

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx"
)

func configFields(path string, config reflect.Value) map[string]any {
	fields := map[string]any{}
	for i := range config.NumField() {
		name, value := path+config.Type().Field(i).Name, config.Field(i)
		if value.Kind() != reflect.Struct {
			fields[name] = value.Interface()
			continue
		}
		for name, value := range configFields(name+".", value) {
			fields[name] = value
		}
	}
	return fields
}

var units = map[string]int64{
	"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "ms": int64(time.Millisecond), "s": int64(time.Second), "minute": int64(time.Minute),
}

func inUnits(text string) string {
	number, unit, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(strings.ReplaceAll(number, ",", ""), 10, 64)
	if factor, known := units[unit]; err == nil && known {
		return strconv.FormatInt(n*factor, 10)
	}
	return text
}

func plainValue(value any) string {
	v := reflect.ValueOf(value)
	switch {
	case v.CanInt():
		return strconv.FormatInt(v.Int(), 10)
	case v.Kind() == reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case !v.IsValid() || v.IsZero():
		return "none"
	}
	return fmt.Sprint(value)
}

func TestThePageHasEachFieldOfTheConfigWithItsDefault(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../module/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	part, _, _ := strings.Cut(string(page), "\n## ")
	fields := configFields("", reflect.ValueOf(pushfx.DefaultConfig()))
	var last string // the config of the last field
	for _, row := range tableRows(part) {
		for name := range strings.SplitSeq(row[0], ", ") {
			name = strings.Trim(name, "`")
			if strings.HasPrefix(name, ".") {
				name = last + name
			}
			last = name[:max(0, strings.LastIndexByte(name, '.'))]
			value, found := fields[name]
			if !found {
				t.Errorf("the config has no field %s", name)
			} else if got, want := inUnits(row[1]), plainValue(value); got != want {
				t.Errorf("the default of %s is %s, which is %s; the page says %s", name, want, fmt.Sprint(value), row[1])
			}
			delete(fields, name)
		}
	}
	var missing []string
	for name := range fields {
		missing = append(missing, name)
	}
	if slices.Sort(missing); len(missing) > 0 {
		t.Errorf("the page lacks %q", missing)
	}
}

// A field that was renamed leaves its old name on pages.
func TestPagesNameOnlyFieldsOfTheConfig(t *testing.T) {
	t.Parallel()
	fields := configFields("", reflect.ValueOf(pushfx.DefaultConfig()))
	groups := map[string]bool{}
	for field := range fields {
		if group, _, isNested := strings.Cut(field, "."); isNested {
			groups[group] = true
		}
	}
	named := regexp.MustCompile("`(?:Config\\.)?([A-Z]\\w+)\\.([A-Z][\\w.]*)`")
	found := 0
	for path, page := range pages(t) {
		for _, name := range named.FindAllStringSubmatch(page, -1) {
			if !groups[name[1]] {
				continue // a type with its field or method
			}
			found++
			if _, known := fields[name[1]+"."+name[2]]; !known {
				t.Errorf("%s names %s.%s, which is no field of the config", path, name[1], name[2])
			}
		}
	}
	if found < 40 {
		t.Errorf("found only %d names", found)
	}
}
