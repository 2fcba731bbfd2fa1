package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"regexp"

	"github.com/labstack/echo/v4"
)

// pageHTML is a page to try the host in a browser.
//
//go:embed page.html
var pageHTML []byte

// pagePolicy allows the script and the style of the page, and requests to this
// host. Trusted Types make the browser refuse any code that turns text into
// markup, such as innerHTML.
var pagePolicy = "default-src 'none'; script-src " + hashOf("script") + "; style-src " + hashOf("style") +
	"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
	"; require-trusted-types-for 'script'; trusted-types 'none'"

// hashOf returns the hash of the page's only element of a name, as a policy has it.
func hashOf(element string) string {
	content := regexp.MustCompile(`(?s)<` + element + `>(.*?)</` + element + `>`).FindSubmatch(pageHTML)[1]
	sum := sha256.Sum256(content)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// page serves GET /.
func page(c echo.Context) error {
	header := c.Response().Header()
	header.Set(echo.HeaderContentSecurityPolicy, pagePolicy)
	header.Set(echo.HeaderXContentTypeOptions, "nosniff")
	header.Set(echo.HeaderReferrerPolicy, "no-referrer")
	header.Set(echo.HeaderCacheControl, "no-cache")
	return c.HTMLBlob(http.StatusOK, pageHTML)
}
