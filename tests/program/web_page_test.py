"""The page of `./cpscope web` in a real browser, opened from disk and clicked as a reader would.

    web_page_test.py PAGE PROGRAM WORK_FOLDER [CASE]

Widgets are found by the names that the page exports, as in the tests of the window. Exit code 77: no browser here.
"""

import base64
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

PAGE, PROGRAM, WORK = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
SCENARIOS = pathlib.Path(__file__).resolve().parents[2] / "scenarios"
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PATIENCE = 400  # seconds, for machines that have much to do

try:
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.common.actions.action_builder import ActionBuilder
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.chrome.service import Service
except ImportError:
    webdriver = None


def write_zigzag_scenario(path, words, others):
    text = SCENARIOS.joinpath("zigzag.toml").read_text()
    assert words in text
    path.write_text(text.replace(words, others))


def start_browser(options):
    """A browser that cannot start on a machine under load is not the page's fault: three tries."""
    for last in (False, False, True):
        try:
            return webdriver.Chrome(service=Service(DRIVER), options=options)
        except WebDriverException:
            if last:
                raise
            time.sleep(5)


class Page:
    """One browser with the page in it."""

    def __init__(self, downloads, anchor, scale):
        self.downloads = downloads
        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER
        for flag in ("headless=new", "no-sandbox", "use-angle=swiftshader", "enable-unsafe-swiftshader", "disable-quic",
                     "no-first-run", "disable-background-networking", "disable-component-update", "disable-sync",
                     "disable-dev-shm-usage", "window-size=1400,1000", f"force-device-scale-factor={scale}"):
            options.add_argument("--" + flag)
        options.add_experimental_option("prefs", {
            "download.default_directory": str(self.downloads),
            "profile.default_content_setting_values.automatic_downloads": 1})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = start_browser(options)
        self.driver.get(PAGE.as_uri() + anchor)
        self.rest()

    def ask(self, function, kind="string", *texts):
        return self.driver.execute_script(
            "return Module.calledRun ? Module.ccall(arguments[0], arguments[1], arguments[2].map(x => 'string'), arguments[2]) : null",
            "cpscope_" + function, kind, list(texts))

    def wait_until(self, holds, what):
        end = time.time() + PATIENCE
        while time.time() < end:
            if holds():
                return
            time.sleep(0.05)
        raise AssertionError(f"waited {PATIENCE} s for {what}; the page says: {self.words()}; {self.notice()}")

    def rest(self):
        self.wait_until(lambda: self.ask("is_at_rest", "number") == 1, "the page to come to rest")

    def words(self):
        return self.ask("words")

    def notice(self):
        """What the page says outside of the canvas, the text for screen readers left out."""
        return self.driver.execute_script(
            "return [...document.body.children].filter(part => part.id !== 'words' && part.tagName !== 'SCRIPT')"
            ".map(part => part.innerText || '').join('')").strip()

    def state(self):
        return json.loads(self.ask("state"))

    def scenario(self):
        return self.state()["scenario"]

    def place(self, name):
        """Middle of a widget, in CSS pixels."""
        self.wait_until(lambda: self.ask("place_of", "string", name), f"the widget {name}")
        x0, y0, x1, y1 = map(float, self.ask("place_of", "string", name).split())
        scale = self.driver.execute_script("return window.devicePixelRatio")
        return round((x0 + x1) / 2 / scale), round((y0 + y1) / 2 / scale)

    def press(self, name):
        x, y = self.place(name)
        hand = ActionBuilder(self.driver)
        hand.pointer_action.move_to_location(x, y).pause(0.15).pointer_down().pause(0.15).pointer_up().pause(0.15)
        hand.perform()

    def click(self, name):
        self.press(name)
        self.rest()

    def type(self, *keys):
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()
        time.sleep(0.1)
        self.rest()

    def press_with_control(self, key):
        webdriver.ActionChains(self.driver).key_down(Keys.CONTROL).send_keys(key).key_up(Keys.CONTROL).perform()
        time.sleep(0.1)
        self.rest()

    def drop(self, path):
        """What a reader who drops a file on the page does."""
        self.driver.execute_script(
            "const bytes = Uint8Array.from(atob(arguments[1]), c => c.charCodeAt(0));"
            "const held = new DataTransfer(); held.items.add(new File([bytes], arguments[0]));"
            "window.dispatchEvent(new DragEvent('drop', {dataTransfer: held, cancelable: true}))",
            path.name, base64.b64encode(path.read_bytes()).decode())

    def says(self, words):
        self.wait_until(lambda: words in self.words(), f'the words "{words}"')

    def shows(self, words):
        """Waits until the scenario's text has these words."""
        self.wait_until(lambda: re.search(words, self.scenario()), f'a scenario with "{words}": {self.scenario()}')

    def reaches(self, key, value):
        self.wait_until(lambda: self.state()[key] == value, f"{key} = {value} in the state, which has {self.state()[key]}")

    def downloaded(self, name):
        path = self.downloads / name
        self.wait_until(path.exists, f"the download {name} (there are {os.listdir(self.downloads)})")
        return path

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
                and "GPU stall due to ReadPixels" not in entry["message"]]

    def show(self, name):
        self.driver.execute_script("location.hash = arguments[0]", name)
        self.wait_until(lambda: self.driver.execute_script("return location.hash") == "#" + name, name)
        time.sleep(0.1)

    def requests(self):
        """Addresses that the page asked for, itself left out."""
        asked = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.append(message["params"]["request"]["url"])
        return [url for url in asked if not url.startswith((PAGE.as_uri(), "data:", "blob:"))]


class WebPage(unittest.TestCase):
    page = None

    def setUp(self):
        self.work = WORK / self._testMethodName
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)

    def open(self, anchor="", scale=1):
        self.page = Page(self.work, anchor, scale)
        return self.page

    def tearDown(self):
        if self.page is None:
            return
        complaints = self.page.complaints()
        self.page.driver.quit()
        self.assertEqual(complaints, [], "the browser's console")

    def testOpensFromDiskWithoutANetworkAndRestsOnTheFirstLesson(self):
        page = self.open()
        self.assertEqual((page.state()["lesson"], page.state()["lesson_step"]), (0, 0))
        self.assertIn("ranks holds the queries, keys and values", page.words())
        self.assertEqual(page.notice(), "")
        frames = page.ask("frames", "number")
        time.sleep(1)
        self.assertEqual(page.ask("frames", "number"), frames, "a page at rest paints nothing")
        self.assertEqual(page.requests(), [])

    def testWalksThroughALessonByItsButtons(self):
        page = self.open("#lesson-1")
        first = page.words()
        page.click("layout/rank/2")
        self.assertNotEqual(page.state()["selection"], {"kind": "nothing"})
        page.click("lesson.next")
        page.reaches("lesson_step", 1)
        self.assertNotEqual(page.words(), first)
        page.click("lesson.close")
        page.reaches("lesson", -1)
        before = page.state()["playhead"]
        page.click("step.next")
        self.assertNotEqual(page.state()["playhead"], before)

    def testHasAnAddressThatShowsTheSameAgain(self):
        page = self.open("#zigzag")
        time.sleep(2)
        page.click("edit/parallel.cp_size/double")
        page.click("step.next")
        address = lambda: page.driver.execute_script("return location.hash")
        page.wait_until(lambda: address().startswith("#state="), "an address of the state")
        time.sleep(2)
        link, shown = address(), page.state()
        page.show("striped")
        page.shows("striped")
        page.driver.execute_script("location.hash = arguments[0]", link)
        page.wait_until(lambda: page.state() == shown, "the state of the link")
        page = self.open("#lesson-3.2")
        page.reaches("lesson_step", 1)

    def testReplansAfterEveryEditAndTakesItBack(self):
        page = self.open("#zigzag")
        page.click("edit/parallel.cp_size/double")
        page.shows(r"cp_size\s+= 8")
        page.click("edit.undo")
        page.shows(r"cp_size\s+= 4")

    def testPredictsTimesOnAClusterAndAgainAfterAnEdit(self):
        page = self.open("#thd_padding_p2p")
        page.click("timeline/cluster")
        page.click("timeline/cluster/h200x8/cpscope")
        page.reaches("cluster", "h200x8")
        page.click("edit/parallel.cp_size/double")
        page.shows(r"cp_size\s+= 8")
        page.reaches("shows_time", True)
        self.assertEqual(page.complaints(), [])

    def testComparesEveryWayBetweenTwoFramesAndTakesOne(self):
        page = self.open("#thd_padding_p2p")
        page.click("view.ways")
        page.place("ways/recommendation")
        page.click("ways/row/group_cast, striped")
        page.shows(r'cp_comm_type\s+= "group_cast"')
        page.shows(r'layout\s+= "striped"')
        page.click("edit.undo")
        page.shows(r'layout\s+= "dual_chunk"')

    def testRunsASmallScenarioAndJudgesIt(self):
        page = self.open("#zigzag")
        page.click("run.cpu")
        page.says("Passes")

    def testRunsEveryShippedScenario(self):
        page = self.open("#zigzag")
        for name in sorted(path.stem for path in SCENARIOS.glob("*.toml")):
            if name == "million_tokens":  # months, on any processor: opened by another case
                continue
            page.show(name)
            page.rest()
            page.press("run.cpu")
            page.says("Passes: every row of every tensor")
            page.rest()

    def testStaysAliveWhileItRunsAndCancels(self):
        long = self.work / "long.toml"
        write_zigzag_scenario(long, "seqlen     = 256", "seqlen = 16384")
        page = self.open("#zigzag")
        page.drop(long)
        page.shows("16384")
        page.rest()
        page.press("run.cpu")
        page.place("run.cancel")
        frames = page.ask("frames", "number")
        before = page.state()["playhead"]
        page.press("step.next")
        page.wait_until(lambda: page.state()["playhead"] != before, "the next step, while the run goes on")
        self.assertGreater(page.ask("frames", "number"), frames)
        self.assertEqual(page.ask("is_at_rest", "number"), 0, "the run goes on")
        page.press("run.cancel")
        page.says("Running on cpu was cancelled")
        page.rest()
        self.assertNotIn("Passes", page.words())

    def testRefusesARunOfHours(self):
        long = self.work / "long.toml"
        write_zigzag_scenario(long, "seqlen     = 256", "seqlen = 262144")
        page = self.open("#zigzag")
        page.drop(long)
        page.shows("262144")
        page.click("run.cpu")
        page.says("too long for a page")

    def testOpensADroppedScenarioAndADroppedRecord(self):
        scenario, record = self.work / "dropped.toml", self.work / "dropped.safetensors"
        write_zigzag_scenario(scenario, "Zigzag: two chunks a rank", "A dropped file")
        subprocess.run([PROGRAM, "run", scenario, "--record", record], check=True, stdout=subprocess.DEVNULL)
        page = self.open("#striped")
        page.drop(scenario)
        page.shows("A dropped file")
        page.drop(record)
        page.says("Passes")

    def testHandsWhatItWritesOverAsDownloads(self):
        page = self.open("#zigzag")
        page.click("edit/parallel.cp_size/double")
        page.shows(r"cp_size\s+= 8")
        page.click("menu/File")
        page.click("menu/File/file.save_as")
        page.type("mine.toml", Keys.ENTER)
        saved = page.downloaded("mine.toml")
        plan = subprocess.run([PROGRAM, "plan", saved, "--json", "--summary"], capture_output=True, check=True)
        self.assertEqual(json.loads(plan.stdout)["steps"], 8)
        page.press_with_control("e")
        page.type("view.svg", Keys.ENTER)
        self.assertIn("<svg", page.downloaded("view.svg").read_text())
        page.press_with_control("e")
        page.type("view.png", Keys.ENTER)
        page.says("A page writes a view as .svg or .csv")
        page.press_with_control("s")
        self.assertEqual(page.downloaded("cpscope.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(json.loads(page.downloaded("cpscope.json").read_text())["scenario"], page.scenario())

    def testZoomsANotchInTheDirectionOfTheWheelAndWhereTheMouseIs(self):
        page = self.open("#zigzag")
        x, y = page.place("layout/chunk/q/0")
        hand = ActionBuilder(page.driver)
        hand.pointer_action.move_to_location(x, y).pause(0.2)
        hand.perform()

        def turn(pixels):
            page.driver.execute_script(
                "document.querySelector('canvas').dispatchEvent(new WheelEvent('wheel', {deltaY: arguments[0], bubbles: true, cancelable: true}))",
                pixels)
            time.sleep(0.2)
            page.rest()
            low, high = page.state()["cameras"]["layout"]["x"]
            return low, high

        low, high = turn(-100)
        self.assertAlmostEqual(high - low, 0.8, places=3)
        self.assertLess(low, 0.03)
        for pixels in (100, 3):
            low, high = turn(pixels)
            self.assertAlmostEqual(high - low, 1, places=6)

    def testShowsOneViewAloneInAnotherPage(self):
        for address, view in (("?embed=mask#zigzag", "mask"), ("?embed=traffic&theme=light#lesson-3", "traffic")):
            page = self.open(address)
            page.place(f"{view}/canvas")
            for absent in ("editor", "inspector", "caption", "lesson", "menu/File"):
                self.assertEqual(page.ask("place_of", "string", absent), "", absent)
            page.click("step.next")
            self.assertEqual(page.notice(), "Open in cpscope")
            if "light" in address:
                self.assertEqual(page.state()["theme"], "light")
            link = page.driver.execute_script("return document.getElementById('open').href")
            self.assertNotIn("embed", link)
            page.driver.quit()
        page = self.open("?embed=sound")
        self.assertIn("?embed=sound: a view is layout, mask", page.notice())

    def testAnswersFingers(self):
        page = self.open("#zigzag")

        def touch(kind, *places):
            page.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {
                "type": kind, "touchPoints": [{"x": x, "y": y, "id": n} for n, (x, y) in enumerate(places)]})

        def stroke(begin, end):
            # As quick as a finger, however slow the driver is.
            page.driver.execute_script(
                "const [begin, end] = arguments, canvas = document.getElementById('canvas');"
                "const tell = (kind, at) => canvas.dispatchEvent(new TouchEvent(kind, {bubbles: true, cancelable: true, touches:"
                "  at ? [new Touch({identifier: 1, target: canvas, clientX: at[0], clientY: at[1]})] : []}));"
                "tell('touchstart', begin);"
                "for (let part = 1; part < 6; ++part) tell('touchmove', begin.map((from, n) => from + (end[n] - from) * part / 5));"
                "tell('touchend');", begin, end)
            time.sleep(0.4)
            page.rest()

        # A tap selects, and leaves no mouse behind that would keep a tooltip open.
        x, y = page.place("layout/rank/2")
        touch("touchStart", (x, y))
        touch("touchEnd")
        page.wait_until(lambda: page.state()["selection"].get("rank") == 2, "the selection of rank 2")
        time.sleep(0.4)
        page.rest()
        self.assertEqual(page.ask("is_hovering", "number"), 0)
        # Two fingers zoom at the place between them.
        x, y = page.place("layout/canvas")
        touch("touchStart", (x - 20, y))
        touch("touchStart", (x - 20, y), (x + 20, y))
        for wide in range(25, 85, 5):
            touch("touchMove", (x - wide, y), (x + wide, y))
            time.sleep(0.05)
        touch("touchEnd")
        page.rest()
        low, high = page.state()["cameras"]["layout"]["x"]
        self.assertAlmostEqual(high - low, 0.25, delta=0.05)
        # A drag over the fields scrolls them.
        before = page.ask("place_of", "string", "edit/parallel.cp_size/double")
        x, y = page.place("editor")
        stroke((x, y + 100), (x, y - 100))
        self.assertNotEqual(page.ask("place_of", "string", "edit/parallel.cp_size/double"), before)
        # On a phone a quick stroke goes to the next view.
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True})
        page.click("tab/mask")
        x, y = page.place("mask/canvas")
        stroke((x + 80, y), (x - 80, y))
        page.place("traffic/canvas")
        stroke((x - 80, y), (x + 80, y))
        page.place("mask/canvas")

    def testMagnifiesTextForTalks(self):
        page = self.open("#zigzag")
        width = lambda: float(page.ask("place_of", "string", "menu/Help").split()[2])
        before = width()
        page.press_with_control(Keys.UP)
        self.assertAlmostEqual(width() / before, 1.25, delta=0.08)
        page.press_with_control(Keys.DOWN)
        self.assertEqual(width(), before)

    def testFindsWhatIsTyped(self):
        page = self.open("#zigzag")
        page.press_with_control("f")
        page.type("rank 3", Keys.ENTER)
        page.wait_until(lambda: page.state()["selection"].get("rank") == 3, "the selection of rank 3")

    def testShowsThePixelsThatTheWindowShows(self):
        for scale in (1, 2):
            with self.subTest(scale=scale):
                page = self.open("#thd_padding_p2p", scale)
                state, native = self.work / "page.json", self.work / "native.png"
                state.write_text(page.ask("state"))
                width, height = page.driver.execute_script("return [innerWidth, innerHeight]")
                # The same scenarios and clusters as inside the page.
                subprocess.run([PROGRAM, "gui", "--state", state, "--screenshot", native, "--size", f"{width}x{height}",
                                "--scale", str(scale)], check=True, stdout=subprocess.DEVNULL,
                               env={**os.environ, "CPSCOPE_ROOT": str(SCENARIOS.parent)})
                different = page.driver.execute_async_script(
                    COMPARE_PICTURES, base64.b64encode(native.read_bytes()).decode(), page.driver.get_screenshot_as_base64())
                self.assertLess(different, 0.01, "share of pixels that differ; see native.png in the work folder")
                if scale == 1:
                    self.assertEqual(page.complaints(), [])
                    page.driver.quit()

    def testShowsEveryShippedScenarioAndEveryLesson(self):
        page = self.open()
        names = [path.stem for path in sorted(SCENARIOS.glob("*.toml"))]
        self.assertGreater(len(names), 20)
        for name in names + [f"lesson-{number}" for number in range(1, 25)]:
            page.show(name)
            page.rest()
            self.assertNotIn("\n", page.words().strip(), name)  # messages stand on lines of their own
            page.place("mask/canvas")
        self.assertEqual(page.ask("show", "number", "lesson-99"), 0)

    def testSaysWhatIsWrongWithADroppedFile(self):
        wrong = self.work / "wrong.toml"
        wrong.write_text("schema = 1\n[attention]\nheads = 'many'\n")
        page = self.open("#zigzag")
        before = page.scenario()
        page.drop(wrong)
        page.says("wrong.toml:3")
        self.assertEqual(page.scenario(), before)


# Share of the pixels of two pictures in which a channel is further apart than smoothing of edges explains; 1 when the sizes differ.
COMPARE_PICTURES = """
const done = arguments[2];
const read = base64 => new Promise(resolve => {
  const image = new Image();
  image.onload = () => {
    const board = document.createElement('canvas');
    board.width = image.width; board.height = image.height;
    const pen = board.getContext('2d');
    pen.drawImage(image, 0, 0);
    resolve({size: [image.width, image.height], data: pen.getImageData(0, 0, image.width, image.height).data});
  };
  image.src = 'data:image/png;base64,' + base64;
});
Promise.all([read(arguments[0]), read(arguments[1])]).then(([a, b]) => {
  if (a.size.join() !== b.size.join()) return done(1);
  let count = 0;
  for (let n = 0; n < a.data.length; n += 4)
    if (Math.max(Math.abs(a.data[n] - b.data[n]), Math.abs(a.data[n + 1] - b.data[n + 1]), Math.abs(a.data[n + 2] - b.data[n + 2])) > 48)
      ++count;
  done(count / (a.data.length / 4));
});
"""

if __name__ == "__main__":
    if webdriver is None or BROWSER is None or DRIVER is None:
        print("requires browser: chromium, its driver or selenium is missing")
        sys.exit(77)
    if not PAGE.exists():
        print("requires browser: the page was not built here")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + ["WebPage." + case for case in sys.argv[4:]], verbosity=2)
