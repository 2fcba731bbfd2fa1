package webpush_test

import (
	"fmt"
	"os"

	"github.com/pushfx/pushfx"
)

func ExampleConfig() {
	c := pushfx.DefaultConfig()
	c.WebPush.Key = os.Getenv("VAPID_KEY") // of "pushctl vapid-key"
	c.WebPush.Subject = "mailto:admin@example.org"
	fmt.Println(c.WebPush.IsOn())
	// Output: true
}
