"""The page of `uxfrm web` in Chromium, with a gateway that carries traffic: figures move, a drop
appears with its cause, `why` answers, by keyboard, on a phone, in the dark, and without a gateway."""

import contextlib
import subprocess

import pytest

import patience
import pictures
from association import GCM_128, Association
from browser import TABBABLE, Browser, Keys
from gateway import CONTROLLED, Gateway
from test_lifecycle import network  # noqa: F401: a fixture
from test_web import PORT, TOKEN, Web, token
from topology import HERE, THERE

TUNNEL = Association(GCM_128, "tunnel", 4, 4, extra="replay-window 32 limit time-soft 2400 limit time-hard 3600")
# Nobody has a state for this one.
DOWN = f"xfrm policy add src 10.1.0.0/16 dst 10.7.0.0/16 dir out tmpl src {HERE.outer[4]} dst 10.9.0.7 proto esp reqid 9 mode tunnel"
# `nobody`, whom uxfrm-web becomes, may ask.
READABLE = CONTROLLED + "\n[status]\ngroup = 65534\n"
ADDRESS = f"http://127.0.0.1:{PORT}"
MANY = 3000
VIEWS = ("tunnels", "drops", "states", "workers", "why", "events")
PEER = THERE.outer[4]


@pytest.fixture
def gateway(uxfrm, network):
    ends = [Gateway(uxfrm, side, workers=2) for side in (network.left, network.right)]
    ends[0].start([*TUNNEL.lines(HERE, THERE), DOWN, *pictures.idle_tunnels()], more=READABLE)
    ends[1].start(TUNNEL.lines(THERE, HERE), more=CONTROLLED)
    yield ends[0]
    for end in ends:
        end.close()


@pytest.fixture
def web(uxfrm, network, gateway, tmp_path):
    made = Web(uxfrm, network.left, tmp_path, "--listen", f"127.0.0.1:{PORT}", "--token-file", str(token(tmp_path)))
    made.wait_until_ready(made.tcp)
    yield made
    if made._process.poll() is None:
        made.close()


@pytest.fixture
def browser(network, web):
    with network.left.entered(), Browser() as made:
        yield made


@pytest.fixture
def page(browser):
    """The page, logged in, with its first sample."""
    log_in(browser)
    browser.wait_for(lambda: browser.one("#connection").text == "live")
    return browser


@contextlib.contextmanager
def traffic(gateway, more=()):
    """Pings through the tunnel and into the one that is down; `more` are intervals of others."""
    pings = [
        subprocess.Popen(
            ["ip", "netns", "exec", gateway.namespace.name, "ping", "-q", "-i", every, "-s", "1200", "-I", HERE.inner[4], destination],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for every, destination in (("0.01", THERE.inner[4]), ("0.2", "10.7.0.1"), *((every, THERE.inner[4]) for every in more))
    ]
    try:
        yield
    finally:
        for ping in pings:
            ping.kill()
            ping.wait()


def log_in(browser):
    browser.driver.get(ADDRESS)
    browser.wait_for(lambda: browser.driver.current_url.endswith("/login") and browser.one("#token"))
    # That it is asked for at all was a refusal, which the console tells.
    browser.complaints()
    browser.one("#token").send_keys(TOKEN, Keys.ENTER)
    browser.wait_for(lambda: browser.one("#view-title"))


def show(browser, view):
    browser.one(f'#views a[href="#{view}"]').click()
    browser.wait_for(lambda: browser.one("#views a[aria-current]").get_attribute("href").endswith(f"#{view}"))


def cells(browser, words):
    """The texts of the cells of the first row that has these words."""
    for row in browser.all("tbody tr:not(.details)"):
        texts = [cell.text for cell in row.find_elements("css selector", "td")]
        if any(words in text for text in texts):
            return texts
    return []


def test_a_token_is_asked_for_and_a_wrong_one_refused(browser):
    browser.driver.get(ADDRESS)
    browser.wait_for(lambda: browser.one("#token"))
    browser.one("#token").send_keys("wrong" * 8, Keys.ENTER)
    browser.wait_for_text("not the token")
    browser.one("#token").send_keys(TOKEN, Keys.ENTER)
    browser.wait_for(lambda: browser.one("#connection").text == "live")


def test_figures_move_under_traffic(page, gateway):
    with traffic(gateway):
        page.wait_for(lambda: all("bit/s" in text and not text.startswith(("0", "–")) for text in cells(page, PEER)[3:5]))
        page.wait_for(lambda: cells(page, PEER)[0] == "up" and cells(page, "10.9.0.7")[0] == "down")
        before = page.one(".line.first").get_attribute("points")
        page.wait_for(lambda: page.one(".line.first").get_attribute("points") != before)
        show(page, "workers")
        workers = lambda: [[cell.text for cell in row.find_elements("css selector", "td")] for row in page.all("main table:first-of-type tbody tr")][:2]
        # Busy share and cycles a packet of whichever has the flow.
        page.wait_for(lambda: any(row[1] != "–" and row[7] not in ("–", "0") for row in workers()))
        page.wait_for(lambda: cells(page, "esp4") and cells(page, "out ipv4"))
        show(page, "states")
        page.wait_for(lambda: "min" in cells(page, "0x00001000")[8])
        assert page.one(".bar .fill[width]")
    assert page.hosts() == {ADDRESS} and page.complaints() == []


def test_a_provoked_drop_appears_with_its_cause(page, gateway):
    show(page, "drops")
    page.wait_for_text("No packet was dropped since the gateway started.")
    with traffic(gateway):
        page.wait_for(lambda: cells(page, "out_no_state")[0] == "out_no_state")
        page.wait_for(lambda: float(cells(page, "out_no_state")[1].rstrip("/s")) > 0)
    reason = cells(page, "out_no_state")
    assert "No state fits" in reason[3] and "uxfrm xfrm policy list" in reason[4], reason
    page.wait_for(lambda: "10.7.0.1" in page.text() and "Whose packets" in page.text())
    page.one("button.link").click()
    page.wait_for_text("Latest packets: out_no_state")
    show(page, "events")
    page.wait_for(lambda: any("out_no_state" in line.text for line in page.all(".events li")))
    assert page.complaints() == []


def test_why_answers_and_marks_what_leaves_plain(page):
    show(page, "why")

    def explain(source, destination):
        for name, value in (("source", source), ("destination", destination)):
            field = page.one(f"input[name={name}]")
            field.clear()
            field.send_keys(value)
        page.one("button.primary").click()

    explain(HERE.inner[4], THERE.inner[4])
    page.wait_for(lambda: page.one(".verdict strong").text == "Leaves protected")
    stages = [stage.text for stage in page.all(".steps .stage")]
    assert {"policy", "state"} <= set(stages), stages
    explain(HERE.inner[4], "10.9.0.2")
    page.wait_for(lambda: page.one(".verdict strong").text == "Leaves PLAIN")
    assert page.all(".plain") and page.one(".verdict").get_attribute("data-tone") == "bad"
    explain(HERE.inner[4], "10.7.0.1")
    page.wait_for(lambda: page.one(".verdict strong").text in ("Dropped", "Waits"))
    assert "Cause" in page.text()
    assert page.complaints() == []
    explain("nonsense", "10.7.0.1")
    page.wait_for(lambda: page.one(".answer .bad").text)


def test_details_open_and_a_filter_leaves_the_others_out(page):
    page.wait_for(lambda: len(page.all("main table > tbody")) == 6)
    page.one('tbody[data-health="down"] .open').click()
    page.wait_for_text("no state fits the template")
    page.wait_for_text("start the IKE daemon")
    page.one("input[name=peer]").send_keys("10.9.0.12", Keys.ENTER)
    page.wait_for(lambda: len(page.all("main table > tbody")) == 1 and cells(page, "10.9.0.12"))
    assert page.complaints() == []


def test_of_very_many_tunnels_a_page_is_shown(page, gateway):
    """Rows stay few, and the others are found by address and page by page."""
    (gateway.directory / "many").write_text("".join(f"{line.removeprefix('xfrm ')}\n" for line in many(MANY)))
    gateway.namespace.run(str(gateway._binary), "xfrm", "-batch", str(gateway.directory / "many"))
    page.wait_for_text(f"100 of {MANY + 6:,} tunnels")
    assert len(page.all("main table > tbody")) == 100
    page.one("select[name=order]").send_keys("by name")
    page.wait_for(lambda: page.one(".picker button[type=button]").is_displayed())
    first = [cell.text for cell in page.all(".open")]
    page.one(".picker button[type=button]").click()
    page.wait_for(lambda: len(page.all(".open")) == 100 and not {cell.text for cell in page.all(".open")} & set(first))
    page.one("input[name=peer]").send_keys("198.18.5.7", Keys.ENTER)
    page.wait_for(lambda: [cell.text for cell in page.all(".open")] == ["198.18.5.7"])
    show(page, "states")
    page.wait_for(lambda: len(page.all("tbody tr")) == 1)
    page.one("section:not([hidden]) input[name=peer]").clear()
    page.one("input[name=peer]").send_keys(Keys.ENTER)
    page.wait_for(lambda: 100 <= len(page.all("tbody tr")) <= 200)
    assert page.complaints() == []


def many(count):
    """`ip xfrm` lines of so many tunnels without another end."""
    for number in range(count):
        peer = f"198.18.{number >> 8}.{number & 255}"
        yield f"xfrm state add src {HERE.outer[4]} dst {peer} proto esp spi {number + 0x10000:#x} reqid {number + 100} mode tunnel aead rfc4106(gcm(aes)) {number + 1:#042x} 128"
        yield (
            f"xfrm policy add src 10.1.0.1 dst 10.128.{number >> 8}.{number & 255} dir out"
            f" tmpl src {HERE.outer[4]} dst {peer} proto esp reqid {number + 100} mode tunnel"
        )


def test_the_keyboard_reaches_everything(page):
    for view in VIEWS:
        page.script("location.hash = arguments[0]", view)
        # From the beginning of the page, where Tab begins after it was opened.
        page.driver.refresh()
        page.wait_for(lambda: page.one("#connection").text == "live")
        wanted = page.script(
            "return [...document.querySelectorAll(arguments[0])].filter((one) => one.tabIndex >= 0 && one.checkVisibility()).length", TABBABLE
        )
        seen = [page.tab() for _ in range(wanted)]
        assert seen[0][1] == "Skip to content", seen
        assert all(is_visible for *_, is_visible in seen), (view, seen)
        assert all(is_shown for _, _, is_shown, _ in seen), (view, seen)
        assert len({(tag, name) for tag, name, *_ in seen}) >= min(wanted, 10), (view, seen)
    page.driver.refresh()
    page.wait_for(lambda: page.one("#view-title").text == "Events")
    page.tab()
    page.press(Keys.ENTER)
    page.wait_for(lambda: page.script("return document.activeElement.id") == "main")
    assert page.one("#view-title").text == "Events"


def test_a_screen_reader_is_told_what_things_are(page):
    assert page.script("return document.documentElement.lang") == "en"
    for view in VIEWS:
        show(page, view)
        levels = [int(heading.tag_name[1]) for heading in page.all("h1, h2, h3")]
        assert levels[:2] == [1, 2] and all(after <= before + 1 for before, after in zip(levels, levels[1:])), (view, levels)
        unnamed = page.script(
            """return [...document.querySelectorAll('button, input, select, a')].filter((one) => one.checkVisibility()
            && !one.textContent.trim() && !one.labels?.length && !one.ariaLabel).map((one) => one.outerHTML)"""
        )
        assert unnamed == [], view
        tables = page.script("return [...document.querySelectorAll('main table')].map((one) => [!!one.caption, one.querySelectorAll('th[scope=col]').length])")
        assert all(has_caption and heads > 0 for has_caption, heads in tables), (view, tables)
    assert page.one("#announcer").get_attribute("aria-live") == "polite"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_without_scrolling_sideways(scheme, page, gateway):
    page.size(360, 740, is_phone=True)
    page.scheme(scheme)
    with traffic(gateway):
        for view in VIEWS:
            show(page, view)
            page.wait_for(lambda: page.one("#connection").text == "live")
            if view == "drops":
                page.wait_for(lambda: cells(page, "out_no_state"))
            page.wait_for(lambda: page.overflow() == 0)
        show(page, "tunnels")
        page.one(".open").click()
        assert page.overflow() == 0
    ground = page.script("return getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in ground.removeprefix("rgb(").rstrip(")").split(",")) / 3
    assert (brightness > 200) == (scheme == "light"), ground


def contrasts(page):
    """Texts whose contrast with what is behind them is below 4.5 (WCAG 2 AA)."""
    return page.script(
        """
        const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return { r, g, b, a }; };
        const light = ({ r, g, b }) => [r, g, b].map((part) => part / 255).map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
            .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
        const behind = (one) => { for (let at = one; at; at = at.parentElement) { const colour = parse(getComputedStyle(at).backgroundColor); if (colour.a > 0) return colour; } return { r: 255, g: 255, b: 255 }; };
        return [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility() && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
            .map((one) => { const [a, b] = [light(parse(getComputedStyle(one).color)), light(behind(one))];
                return [one.textContent.trim().slice(0, 30), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]; })
            .filter(([, contrast]) => contrast < 4.5);"""
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(scheme, page, gateway):
    page.scheme(scheme)
    with traffic(gateway):
        for view in VIEWS:
            show(page, view)
            page.wait_for(lambda: page.one("#connection").text == "live")
            assert contrasts(page) == [], view


def test_a_gateway_that_stops_is_said_and_one_that_starts_is_shown(page, gateway, web):
    page.wait_for(lambda: cells(page, PEER))
    gateway.stop()
    page.wait_for(lambda: page.one("#connection").text == "not answering")
    assert "No gateway answers" in page.one("#banner").text and "systemctl start uxfrm" in page.one("#banner").text
    assert page.one("#banner").get_attribute("role") == "alert" and cells(page, PEER), "what was known stays"
    show(page, "events")
    page.wait_for(lambda: any("the gateway went" in line.text for line in page.all(".events li")))
    gateway.launch()
    page.wait_for(lambda: page.one("#connection").text == "live" and not page.one("#banner").is_displayed())
    page.wait_for(lambda: any("a gateway answers" in line.text for line in page.all(".events li")))
    web.close()
    page.wait_for(lambda: "The page's server does not answer" in page.one("#banner").text)


def test_a_peer_that_is_no_address_is_said_beside_the_field(page, gateway):
    """The gateway is well: nothing else stops, and when it does stop that is what is said."""
    page.size(360, 740, is_phone=True)
    page.wait_for(lambda: cells(page, PEER))
    field = page.one("input[name=peer]")
    field.send_keys("nonsense" * 20, Keys.ENTER)
    page.wait_for(lambda: "an IP address or a prefix" in page.one(".picker .bad").text)
    assert field.get_attribute("aria-invalid") == "true" and field.get_attribute("value").startswith("nonsense")
    assert page.one("#connection").text == "live" and not page.one("#banner").is_displayed()
    assert cells(page, PEER) and page.overflow() == 0
    gateway.stop()
    page.wait_for(lambda: "No gateway answers" in page.one("#banner").text)
    gateway.launch()
    page.wait_for(lambda: page.one("#connection").text == "live" and not page.one("#banner").is_displayed())
    field.clear()
    field.send_keys(PEER, Keys.ENTER)
    page.wait_for(lambda: page.one(".picker .bad").text == "" and cells(page, PEER))
    assert field.get_attribute("aria-invalid") is None


def test_the_pictures_of_the_documentation(page, gateway):
    """docs/images/web-light.png, a desk, and web-dark.png, a phone, where `scripts/pictures` asks for them."""
    page.scheme("light")
    with traffic(gateway, more=("0.001", "0.002")):
        page.wait_for(lambda: len(page.one(".line.first").get_attribute("points").split()) >= 15)
        page.one('tbody[data-health="down"] .open').click()
        page.size(1200, 1010)
        page.wait_for(lambda: page.overflow() == 0)
        pictures.keep("web-light.png", page.picture())
        page.scheme("dark")
        page.size(390, 844, is_phone=True)
        show(page, "drops")
        page.wait_for(lambda: cells(page, "out_no_state"))
        page.script("window.scrollTo(0, 0)")
        pictures.keep("web-dark.png", page.picture())
    assert page.picture().startswith(b"\x89PNG")
