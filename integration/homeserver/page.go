package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"regexp"

	"github.com/labstack/echo/v4"
)

// pageHTML is the page for trying the host in a browser.
//
//go:embed page.html
var pageHTML []byte

// pagePolicy allows only the page's own script and style, and requests to this host. With
// Trusted Types, the browser refuses code that turns text into markup, such as innerHTML.
var pagePolicy = "default-src 'none'; script-src " + hashOf("script") + "; style-src " + hashOf("style") +
	"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
	"; require-trusted-types-for 'script'; trusted-types 'none'"

// hashOf returns the hash of the only element with this name, in the policy's syntax.
func hashOf(element string) string {
	content := regexp.MustCompile(`(?s)<` + element + `>(.*?)</` + element + `>`).FindSubmatch(pageHTML)[1]
	sum := sha256.Sum256(content)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func page(c echo.Context) error {
	header := c.Response().Header()
	header.Set(echo.HeaderContentSecurityPolicy, pagePolicy)
	header.Set(echo.HeaderXContentTypeOptions, "nosniff")
	header.Set(echo.HeaderReferrerPolicy, "no-referrer")
	header.Set(echo.HeaderCacheControl, "no-cache")
	return c.HTMLBlob(http.StatusOK, pageHTML)
}
