"""The trajectory report as a reader meets it: search, filters, steps, comparison, addresses."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Reader
from tests.browser.report import CHOICES, FILLERS, LONG, OTHERS, SETTINGS, SHARED
from tests.evaluation.trajectories.made import BOUND, HOSTILE, PROMPT

EVICTED, RESCUE = SETTINGS["best_of_n"].key, SETTINGS["kv_rescue"].key
PROBLEMS = len(CHOICES) + len(HOSTILE) + FILLERS


def attributes(elements: Locator, name: str) -> list[str | None]:
    return [element.get_attribute(name) for element in elements.all()]


class TestList:
    def test_rows_come_as_they_are_asked_for(self, reader: Reader) -> None:
        page = reader.open()
        expect(page.locator("#count")).to_have_text(f"{PROBLEMS} problems")
        for count in (100, 200):
            reader.soon(lambda: len(reader.listed()), count)
            page.locator("#more").click()
        reader.soon(lambda: len(reader.listed()), PROBLEMS)
        expect(page.locator("#more")).to_be_hidden()
        assert len(set(reader.listed())) == PROBLEMS

    @pytest.mark.parametrize(
        ("words", "found"),
        [
            ("spider", ["both"]),
            ("COLOUR grass", ["lost"]),
            ("brown", ["lost"]),  # an answer
            ("everything", ["failed"]),  # a right answer
            ("filler-77", ["filler-77"]),
            ("שלום مرحبا", ["hostile-3"]),
            ("spider sky", []),
            ("</script><script>", ["hostile-0"]),
        ],
    )
    def test_search_narrows(self, reader: Reader, words: str, found: list[str]) -> None:
        page = reader.open()
        page.locator("#search").fill(words)
        reader.soon(reader.listed, found)
        expect(page.locator("#count")).to_have_text(f"{len(found)} of {PROBLEMS} problems")
        page.get_by_role("button", name="Clear").click()
        expect(page.locator("#count")).to_have_text(f"{PROBLEMS} problems")

    @pytest.mark.parametrize(
        ("outcome", "found"),
        [
            ("rescued", ["rescued"]),
            ("lost", ["lost"]),
            ("mixed", ["rescued", "lost"]),
            ("failed", ["failed"]),
        ],
    )
    def test_outcomes(self, reader: Reader, outcome: str, found: list[str]) -> None:
        page = reader.open()
        page.locator("#by-outcome").select_option(outcome)
        reader.soon(reader.listed, found)

    def test_filters_hold_for_one_setting_at_once(self, reader: Reader) -> None:
        page = reader.open()
        page.locator("#by-outcome").select_option("correct")
        page.locator("#by-setting").select_option(index=1)  # evicted
        named = {"lost", "rescued", "both"}
        reader.soon(lambda: named & {*reader.listed()}, {"lost", "both"})
        page.locator("#by-setting").select_option(index=2)
        reader.soon(lambda: named & {*reader.listed()}, {"rescued", "both"})
        page.locator("#by-aborted").check()
        reader.soon(lambda: named & {*reader.listed()}, {"rescued"})

    def test_degraded_and_traced(self, reader: Reader) -> None:
        page = reader.open()
        page.locator("#by-degraded").check()
        reader.soon(reader.listed, ["degraded"])
        page.locator("#by-degraded").uncheck()
        page.locator("#by-traced").check()
        traced = {*CHOICES, *(f"hostile-{i}" for i in range(len(HOSTILE)))} - {"failed"}
        reader.soon(lambda: set(reader.listed()), traced)

    def test_chips_tell_every_setting(self, reader: Reader) -> None:
        page = reader.open()
        chips = page.locator("#problems li").filter(has_text="rescued").locator(".chip")
        reader.soon(lambda: attributes(chips, "data-outcome"), ["wrong", "correct"])

    def test_the_overview_leads_to_problems(self, reader: Reader) -> None:
        page = reader.open()
        row = page.locator("tr[data-setting='1']")
        row.get_by_role("button").and_(page.locator("[data-outcome='lost']")).click()
        expect(page.locator("#problems li")).to_have_count(1)
        reader.soon(reader.listed, ["lost"])


class TestProblem:
    def test_what_was_asked_and_answered(self, reader: Reader) -> None:
        page = reader.open(address="#p=lost")
        expect(page.locator(".asked")).to_have_text(CHOICES["lost"][0])
        expect(page.locator(".gold")).to_have_text("green")
        expect(page.locator(".given")).to_have_text("brown")
        expect(page.locator(".verdict-sign")).to_contain_text("wrong")
        page.locator(".tabs a").first.click()
        expect(page.locator(".given")).to_have_text("green")
        reader.soon(lambda: reader.address.get("s"), EVICTED)

    def test_a_step_unfolds_to_its_candidates(self, reader: Reader) -> None:
        page = reader.open(address="#p=rescued")
        rounds = page.locator("#rounds > li > .round")
        expect(rounds).to_have_count(SHARED + 2)
        expect(page.locator(".candidate")).to_have_count(0)
        reader.soon(lambda: attributes(rounds, "data-shade"), ["0"] * SHARED + ["1"] * 2)
        rounds.nth(SHARED).locator("summary").click()
        candidates = rounds.nth(SHARED).locator(".candidate")
        reader.soon(lambda: attributes(candidates, "data-state"), ["aborted", "rival", "chosen"])
        aborted = candidates.first
        expect(aborted.locator(".verdict b")).to_have_text("entropy 3.1 > 2.5 at token 7")
        assert (
            aborted.locator("s").evaluate("node => getComputedStyle(node).textDecorationLine")
            == "line-through"
        )
        expect(aborted.locator(".score")).to_have_count(0)
        expect(candidates.last.locator(".score .figure")).to_have_text("0.950")
        width = "node => node.offsetWidth / node.parentElement.clientWidth"
        shares = [one.locator(".fill").evaluate(width) for one in candidates.all()[1:]]
        assert shares == pytest.approx([0.2, 0.95], abs=0.03)
        reader.soon(lambda: reader.address.get("step"), str(SHARED + 1))

    def test_tokens_spent_and_saved(self, reader: Reader) -> None:
        page = reader.open(address="#p=rescued")
        cost = page.locator(f".round[data-step='{SHARED + 1}'] .cost")
        limit = SETTINGS["kv_rescue"].config.sampling.max_step_tokens
        base = len("babble") + len("Base goes astray.\n\n")
        expect(cost).to_contain_text(
            f"tokens: base {base}, helper {len('Helper knows better..') + 1}"
        )
        expect(cost).to_contain_text("1 aborted")
        expect(cost).to_contain_text(f"at most {limit - len('babble')} saved")
        expect(page.locator(".totals .saved")).to_have_text(
            f"at most {limit - len('babble')} tokens"
        )

    def test_the_chart_shows_cache_against_length(self, reader: Reader) -> None:
        page = reader.open(address="#p=rescued")
        charts = page.locator(".chart.cache")
        reader.soon(lambda: attributes(charts, "data-view"), ["base", "helper"])
        expect(charts.first.locator(".bound-name")).to_have_text(f"bound {BOUND}")
        expect(charts.nth(1).locator(".bound")).to_have_count(0)
        titles = charts.first.locator(".pointer title").all_text_contents()
        assert len(titles) == SHARED + 3
        assert titles[0].startswith(f"the question: {PROMPT} held of {PROMPT} read")
        length = PROMPT + len("Step 0 says so.\n\n")
        assert titles[1].startswith(f"after step 1: {BOUND} held of {length} read")
        charts.first.locator(".pointer").nth(2).click()
        expect(page.locator(".round[data-step='2']")).to_have_attribute("open", "")

    def test_failed_degraded_and_not_kept(self, reader: Reader) -> None:
        page = reader.open(address="#p=failed")
        expect(page.locator(".totals")).to_contain_text("PolicyError no <i>more</i>")
        page = reader.open(address="#p=degraded")
        expect(page.locator(".totals ul.warn")).to_have_text("helper out of <b>memory</b>")
        page = reader.open(address="#p=filler-5")
        expect(page.locator(".plain .note")).to_contain_text("were not kept")
        expect(page.locator(".plain .prose")).to_have_text("Step 0 says so.")

    def test_a_long_trajectory(self, reader: Reader) -> None:
        page = reader.open(address=f"#p=long&step={LONG - 3}")
        expect(page.locator("#rounds > li")).to_have_count(LONG)
        last = page.locator(f".round[data-step='{LONG - 3}']")
        expect(last).to_have_attribute("open", "")
        expect(last).to_be_in_viewport()
        expect(page.locator(".candidate")).to_have_count(2)
        page.locator("#unfold").click()
        expect(page.locator(".candidate")).to_have_count(2 * LONG)
        reader.soon(
            lambda: reader.address.get("step"), str(LONG - 3)
        )  # nobody went to another step


class TestComparison:
    def test_it_stops_at_the_first_step_that_differs(self, reader: Reader) -> None:
        page = reader.open(address="#p=rescued")
        page.locator("#compare").select_option(
            label=page.locator("#compare option").nth(1).inner_text()
        )
        comparison = page.locator(".comparison")
        expect(comparison).to_have_attribute("data-common", str(SHARED))
        expect(comparison).to_have_attribute("data-cause", "proposers")
        expect(comparison.locator(".draws li")).to_have_text(
            "base the same candidates, some aborted on one side"
        )
        expect(comparison.locator(".where")).to_have_text(f"Step {SHARED + 1}")
        expect(comparison.locator(".shared li")).to_have_count(SHARED)
        sides = comparison.locator(".side")
        for place, text in enumerate(("Helper knows better.", "Base goes astray.")):
            parted = sides.nth(place).locator(".parted .round")
            expect(parted).to_have_count(1)
            expect(parted.locator("summary .text")).to_have_text(text)
            expect(sides.nth(place).locator(".later .round")).to_have_count(1)
        expect(sides.first.locator(".fate")).to_have_text(re.compile("had no such candidate"))
        expect(sides.nth(1).locator(".fate")).to_have_text(
            re.compile("scored 0.200 and was passed")
        )
        reader.soon(lambda: reader.address, {"p": "rescued", "s": RESCUE, "d": EVICTED})
        boxes = [side.bounding_box() for side in sides.all()]
        assert boxes[0]["y"] == boxes[1]["y"]  # type: ignore[index]

    def test_either_side_may_come_first(self, reader: Reader) -> None:
        page = reader.open(address=f"#p=rescued&s={EVICTED}&d={RESCUE}")
        expect(page.locator(".comparison")).to_have_attribute("data-common", str(SHARED))
        sides = page.locator(".side .parted summary .text")
        expect(sides).to_have_text(["Base goes astray.", "Helper knows better."])
        expect(page.locator(".side .fate")).to_have_text(
            [re.compile("scored 0.200"), re.compile("^(?!.*scored 0.200)")]
        )

    def test_two_runs(self, reader: Reader) -> None:
        other = OTHERS["kv_rescue"].key
        page = reader.open("two", f"#p=rescued&s={RESCUE}&d={other}")
        expect(page.locator(".comparison")).to_have_attribute("data-common", str(SHARED + 1))
        texts = page.locator(".side .parted summary .text")
        expect(texts).to_have_text(["rescued end", "another end"])

    def test_no_difference(self, reader: Reader) -> None:
        page = reader.open(address=f"#p=both&s={EVICTED}&d={RESCUE}")
        expect(page.locator(".comparison")).to_have_attribute("data-cause", "none")
        expect(page.locator(".parting")).to_contain_text("never part: both are ended by EOS")
        expect(page.locator(".sides")).to_have_count(0)


class TestAddresses:
    def test_a_link_opens_a_step_of_a_setting(self, reader: Reader) -> None:
        page = reader.open(address=f"#p=rescued&s={EVICTED}&step=2")
        expect(page.locator(".given")).to_have_text("grey")
        opened = page.locator("#rounds .round[open]")
        expect(opened).to_have_count(1)
        expect(opened).to_have_attribute("data-step", "2")
        expect(opened).to_be_in_viewport()

    @pytest.mark.parametrize(
        "address", ["#p=nobody", "#nonsense", "#p=rescued&s=no&d=no&step=x", "#p=rescued&step=99"]
    )
    def test_a_wrong_one_does_no_harm(self, reader: Reader, address: str) -> None:
        page = reader.open(address=address)
        shown = page.locator("#rounds" if "rescued" in address else ".overview")
        expect(shown).to_have_count(1)

    def test_back_and_forth(self, reader: Reader) -> None:
        page = reader.open()
        page.locator("#problems a").first.click()
        expect(page.locator("main h2")).to_contain_text("rescued")
        page.locator("#problems a").nth(1).click()
        expect(page.locator("main h2")).to_contain_text("lost")
        page.go_back()
        expect(page.locator("main h2")).to_contain_text("rescued")
        page.go_back()
        expect(page.locator(".overview")).to_be_visible()

    def test_a_problem_keeps_the_setting(self, reader: Reader) -> None:
        page = reader.open(address=f"#p=rescued&s={EVICTED}")
        expect(page.locator(".given")).to_have_text("grey")
        page.locator("#problems a").nth(1).click()
        expect(page.locator(".given")).to_have_text("green")
        reader.soon(lambda: reader.address, {"p": "lost", "s": EVICTED})


class TestKeyboard:
    def test_problems_settings_and_candidates(self, reader: Reader) -> None:
        page = reader.open(address="#p=rescued")
        heading = page.locator("main h2")
        page.keyboard.press("j")
        expect(heading).to_contain_text("lost")
        page.keyboard.press("k")
        expect(heading).to_contain_text("rescued")
        expect(page.locator(".given")).to_have_text("blue")
        page.keyboard.press("[")
        expect(page.locator(".given")).to_have_text("grey")
        page.keyboard.press("]")
        expect(page.locator(".given")).to_have_text("blue")
        page.keyboard.press("e")
        expect(page.locator("#rounds .round[open]")).to_have_count(SHARED + 2)

    def test_letters_in_the_search_are_letters(self, reader: Reader) -> None:
        page = reader.open(address="#p=rescued")
        page.keyboard.press("/")
        page.keyboard.type("jkej")
        expect(page.locator("#search")).to_have_value("jkej")
        expect(page.locator("main h2")).to_contain_text("rescued")

    def test_a_step_opens_without_a_mouse(self, reader: Reader) -> None:
        page = reader.open(address="#p=rescued")
        page.locator("#unfold").focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#rounds .round[open]")).to_have_attribute("data-step", "1")

    def test_the_list_can_be_skipped(self, reader: Reader) -> None:
        page = reader.open()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()


class TestHostile:
    def test_it_is_shown_as_text(self, reader: Reader) -> None:
        page = reader.open(address="#p=hostile-0&step=1")
        expect(page.locator(".asked")).to_have_text(f"0 {HOSTILE[0]}")
        expect(page.locator(".given")).to_have_text(HOSTILE[0])
        for place in (0, 1, 2):
            visible = re.sub("[\u2028\u2029]", lambda m: f"⟨U+{ord(m[0]):04X}⟩", HOSTILE[place])
            expect(page.locator(".candidate .prose", has_text=visible).nth(1)).to_be_visible()
        expect(page.locator("main img, main script, main b.hostile")).to_have_count(0)

    @pytest.mark.parametrize("place", range(len(HOSTILE)))
    def test_every_text_opens(self, reader: Reader, place: int) -> None:
        page = reader.open(address=f"#p=hostile-{place}&step=1")
        expect(page.locator("#rounds .round[open] .candidate").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def test_what_cannot_be_seen_is_named(self, reader: Reader) -> None:
        page = reader.open(address="#p=hostile-5&step=1")
        text = page.locator(".candidate .prose").first.inner_text()
        for name in ("␀", "␇", "␛", "⟨U+007F⟩", "⟨U+FEFF⟩"):
            assert name in text
        page = reader.open(address="#p=hostile-3&step=1")
        first = page.locator(".candidate .prose").first
        assert "⟨U+202E⟩" in first.inner_text()
        assert first.get_attribute("dir") == "auto"
        page = reader.open(address="#p=hostile-6&step=1")
        assert page.locator(".candidate .prose").first.inner_text() == "⏎"
        page = reader.open(address="#p=hostile-7&step=1")
        assert page.locator(".candidate .prose").first.inner_text() == "nothing"

    def test_emoji_stay_whole(self, reader: Reader) -> None:
        page = reader.open(address="#p=hostile-4&step=1")
        expect(page.locator(".candidate .prose").first).to_have_text(HOSTILE[4])

    def test_a_long_text_is_cut_until_it_is_asked_for(self, reader: Reader) -> None:
        page = reader.open(address="#p=hostile-8&step=1")
        text = page.locator(".candidate .prose").first
        assert len(text.inner_text()) < 2000
        text.get_by_role("button", name="show all 100,000 characters").click()
        reader.soon(text.inner_text, HOSTILE[8])


@pytest.mark.parametrize(
    "reader",
    [
        {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
        for width in (400, 1280)
        for scheme in ("light", "dark")
    ],
    indirect=True,
    ids=lambda options: f"{options['viewport']['width']}-{options['color_scheme']}",
)
class TestLooks:
    PLACES = ("", "#p=rescued&step=4", f"#p=rescued&s={EVICTED}&d={RESCUE}", "#p=filler-1")

    def test_it_fits_the_width(self, reader: Reader) -> None:
        for address in self.PLACES:
            page = reader.open("two", address)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address

    def test_text_stands_out(self, reader: Reader) -> None:
        """At least 4.5 : 1, as WCAG 2.2 asks of texts (level AA)."""
        page = reader.open(address="#p=rescued&step=4")
        assert page.evaluate(CONTRAST) == []

    def test_narrow_pages_show_one_thing_at_a_time(self, reader: Reader) -> None:
        page = reader.open(address="#p=rescued")
        narrow = page.viewport_size["width"] < 860  # type: ignore[index]
        assert page.locator("#side").is_visible() is not narrow
        if narrow:
            page.get_by_role("link", name="All problems").click()
            expect(page.locator("#side")).to_be_visible()


CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => {
    const [r, g, b] = rgb(text).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      const parts = rgb(colour);
      if (parts.length === 3 || parts[3] === 1) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility() || node.closest("svg")) continue;
    if (node.closest("script, style, .heard, .off, [data-outcome=none]")) continue;
    const [one, other] = [light(getComputedStyle(node).color), light(ground(node))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push([node.className, texts.currentNode.data.slice(0, 20), ratio]);
  }
  return poor;
}"""
