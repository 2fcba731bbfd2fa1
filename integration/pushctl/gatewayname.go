package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module/delivery"
)

// gatewayName is an operator's name of a push gateway. An empty part stands for any; the
// zero value names all gateways.
type gatewayName struct {
	scheme, host, port string
	text               string // as given
}

// gatewayForms is for the texts of -h. A scheme without a port has its default port.
const gatewayForms = "host, host:port or scheme://host:port"

func readGatewayName(text string) (gatewayName, error) {
	scheme, address, hasScheme := strings.Cut(text, "://")
	if !hasScheme {
		scheme, address = "https", text
	}
	u, err := url.Parse(scheme + "://" + address)
	if err != nil || u.Host != address || u.Scheme != "http" && u.Scheme != "https" {
		return gatewayName{}, fmt.Errorf("%q is not the name of a gateway, want %s", text, gatewayForms)
	}
	canonical, ok := delivery.GatewayName(u.String())
	if !ok {
		return gatewayName{}, fmt.Errorf("%q is not the name of a gateway, want %s", text, gatewayForms)
	}
	g := gatewayName{text: text}
	g.scheme, g.host, g.port = splitGateway(canonical)
	if !hasScheme {
		g.scheme = ""
		if u.Port() == "" {
			g.port = ""
		}
	}
	return g, nil
}

// splitGateway splits a [delivery.GatewayName].
func splitGateway(name string) (scheme, host, port string) {
	scheme, address, _ := strings.Cut(name, "://")
	colon := strings.LastIndexByte(address, ':')
	if colon < 0 {
		return scheme, address, ""
	}
	return scheme, address[:colon], address[colon+1:]
}

// String returns the name for a terminal.
func (g gatewayName) String() string { return printable(g.text) }

// isAny reports whether g is the zero value.
func (g gatewayName) isAny() bool { return g.host == "" }

// isWhole reports whether g can match one gateway only.
func (g gatewayName) isWhole() bool { return g.scheme != "" }

// matches reports whether g names a gateway, given its [delivery.GatewayName].
func (g gatewayName) matches(gateway string) bool {
	if g.isAny() {
		return true
	}
	scheme, host, port := splitGateway(gateway)
	return host == g.host && (g.scheme == "" || scheme == g.scheme) && (g.port == "" || port == g.port)
}

// maxShownGateways limits the gateways in an error: users can make up any number.
const maxShownGateways = 5

// only returns the gateway that g matches, or an empty name if it matches none. Matched has
// the number of pushers of each matching gateway. If there are several, the error shows the
// ones with the most pushers.
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
