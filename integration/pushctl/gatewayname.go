package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/channel/kinds"
)

// gatewayName is an operator's name of a push gateway. The zero value names all gateways.
type gatewayName struct {
	text               string // as given
	canonical          string // see [delivery.GatewayName]
	hasScheme, hasPort bool   // without a scheme or port, any matches
}

// gatewayForms are the accepted forms, for the texts of -h. A scheme without a port implies its default port.
const gatewayForms = "host, host:port, scheme://host:port, webpush://host or mail://relay"

func readGatewayName(text string) (gatewayName, error) {
	scheme, address, hasScheme := strings.Cut(text, "://")
	if !hasScheme {
		scheme, address = "https", text
	}
	u, err := url.Parse(scheme + "://" + address)
	if err == nil && u.Host == address && kinds.Names().Channels[channel.KindOf(u.String())] != nil {
		if canonical, ok := delivery.GatewayName(u.String()); ok {
			return gatewayName{text, canonical, hasScheme, hasScheme || u.Port() != ""}, nil
		}
	}
	return gatewayName{}, fmt.Errorf("%q is not the name of a gateway, want %s", text, gatewayForms)
}

// String returns the name for a terminal.
func (g gatewayName) String() string { return printable(g.text) }

// isAny reports whether g is the zero value.
func (g gatewayName) isAny() bool { return g.text == "" }

// matches reports whether g names the gateway with this [delivery.GatewayName].
func (g gatewayName) matches(gateway string) bool {
	return g.isAny() || g.part(gateway) == g.part(g.canonical)
}

// part returns the parts of a gateway's canonical name that g also specifies.
func (g gatewayName) part(name string) string {
	if !g.hasScheme {
		_, name, _ = strings.Cut(name, "://")
	}
	if colon := strings.LastIndexByte(name, ':'); !g.hasPort && colon >= 0 {
		name = name[:colon]
	}
	return name
}

// maxShownGateways limits the gateways in an error: users can make up any number.
const maxShownGateways = 5

// only returns the gateway that g matches, or an empty name if it matches none. Matched has the number of pushers of
// each matching gateway. If several gateways match, the error shows the gateways with the most pushers.
func (g gatewayName) only(matched map[string]int) (string, error) {
	names := slices.SortedFunc(maps.Keys(matched), func(a, b string) int {
		return cmp.Or(cmp.Compare(matched[b], matched[a]), cmp.Compare(a, b))
	})
	switch len(names) {
	case 0:
		return "", nil
	case 1:
		return names[0], nil
	}
	shown := make([]string, 0, maxShownGateways)
	for _, name := range names[:min(len(names), maxShownGateways)] {
		shown = append(shown, fmt.Sprintf("%s (%d pushers)", printable(name), matched[name]))
	}
	if more := len(names) - len(shown); more > 0 {
		shown = append(shown, fmt.Sprintf("%d more", more))
	}
	return "", fmt.Errorf("%s matches several gateways, give scheme and port: %s", g, strings.Join(shown, ", "))
}
