"""No text that reaches gin runs code, however its statements are written."""

import dataclasses
import random
import sys

import gin
import pytest

from decoupled import configs
from decoupled.configs.checks import Settings, bound, configurable
from decoupled.core.errors import UserError
from decoupled.launch import gin_files
from tests.refusals import refusal

MODULE = "module_of_a_stranger"

# gin's parser says what a statement is, here as where gin itself would run it.
# Each imports the module where gin reads it.
IMPORTS = [
    "import {}",
    "import\\\n{}",
    "\fimport {}",
    "\\\nimport {}  # a remark",
    "import {}.part as gin_file",
    "from {} import part",
    "from __gin__ import dynamic_registration\nimport {}",
    "A = '''\n'''\nimport {}",
    "a/SamplingConfig:\n  alpha = 1\n  # a remark\n\nimport {}",
]
# Neither gin's grammar nor Python's has these; they run nothing either way.
NEARLY_IMPORTS = [
    "\ufeff\ufeffimport {}",
    "A = 1; import {}",
    "#\rimport {}",
    "A = 1\u2028import {}",
    "A = 1\x00\nimport {}",
    "\uff49mport {}",
    "from . import {}",
    "scope/import {}",
    "SamplingConfig:\n  alpha = 1\n  import {}",
    "A = __import__('{}')",
    "A = @{}.part()",
    "{}.part.x = 1",
    "A = f'{{__import__(\"{}\")}}'",
]
# Each makes gin read stranger.gin, which imports the module.
INCLUDES = [
    "include 'stranger.gin'",
    "  include\\\nu'stran' \"ger.gin\"  # a remark",
    "include '\\x73tranger.gin'",
    "include 'middle.gin'",
]
NEARLY_INCLUDES = [
    "include b'stranger.gin'",
    "include ('stranger.gin')",
    "include %A",
    "A = 1; include 'stranger.gin'",
]


@configurable("reader_root")
@dataclasses.dataclass(frozen=True)
class ReaderRoot(Settings):
    sampling: configs.SamplingConfig = bound(configs.SamplingConfig)


def function_of_a_library():
    """Stands for what libraries register with gin while they are imported."""
    raise AssertionError("a gin file called a library's function")


function_of_a_library.__module__ = "library"
gin.register(function_of_a_library, module="library")


GOOD = """
reader_root.sampling = @SamplingConfig()
SamplingConfig.alpha = 0.5
"""


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Says whether the stranger's module ran; its package lies in the current folder.

    stranger.gin there imports it, and middle.gin includes that.
    """
    trace = tmp_path / "trace"
    package = tmp_path / MODULE
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    (package / "part.py").write_text("")
    (tmp_path / "stranger.gin").write_text(f"import\\\n{MODULE}\n")
    (tmp_path / "middle.gin").write_text("include u'stranger.gin'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield trace.exists
    for name in [name for name in sys.modules if name.startswith(MODULE)]:
        del sys.modules[name]


def configure(files=(), params=()):
    return gin_files.configure(ReaderRoot, files, params).sampling


def mistake(files=(), params=()):
    return refusal(configure, files, params)


def write(path, text):
    """Writes the characters as they are, also those that end lines."""
    with open(path, "w", encoding="utf-8", newline="") as handle:
        handle.write(text)
    return str(path)


@pytest.mark.parametrize("text", [*IMPORTS, *INCLUDES])
def test_gin_itself_would_run_the_module(ran, text):
    gin.parse_config(text.format(MODULE))
    assert ran()


@pytest.mark.parametrize("text", IMPORTS)
def test_an_import_is_refused_in_a_file(ran, text):
    message = mistake([write("a.gin", text.format(MODULE))])
    assert message.startswith("a.gin:")
    assert "would run code; gin files hold settings only" in message
    assert not ran()


@pytest.mark.parametrize("text", [*NEARLY_IMPORTS, *NEARLY_INCLUDES])
def test_what_is_no_statement_is_refused_in_a_file(ran, text):
    assert mistake([write("a.gin", text.format(MODULE))]).startswith("a.gin:")
    assert not ran()


@pytest.mark.parametrize("text", INCLUDES)
def test_an_import_is_refused_in_an_included_file(ran, text):
    expected = f"stranger.gin:1: 'import {MODULE}' would run code"
    assert expected in mistake([write("a.gin", text)])
    assert not ran()


@pytest.mark.parametrize("text", [*IMPORTS, *NEARLY_IMPORTS])
@pytest.mark.parametrize("before", ["", "SamplingConfig.alpha = 1\n"])
def test_an_import_is_refused_in_a_single_binding(ran, before, text):
    write("good.gin", GOOD)
    param = before + text.format(MODULE)
    assert mistake(["good.gin"], [param]).startswith("--gin_param=")
    assert not ran()


@pytest.mark.parametrize(
    "param",
    [
        *INCLUDES,
        *NEARLY_INCLUDES,
        "SamplingConfig.alpha = 1\nSamplingConfig.alpha = 0",
        "SamplingConfig.alpha = 1\r\nSamplingConfig.alpha = 0",
        "SamplingConfig.alpha = 1; SamplingConfig.alpha = 0",
        "SamplingConfig:\n  alpha = 1",
        "# a remark alone",
        "",
    ],
)
def test_a_single_binding_is_one_setting(ran, param):
    write("good.gin", GOOD)
    assert mistake(["good.gin"], [param]).startswith("--gin_param=")
    assert not ran()


def test_a_single_binding_may_span_lines(tmp_path):
    good = write(tmp_path / "good.gin", GOOD)
    param = "SamplingConfig.weights = {\n  'en': 0.5,  # a remark\n}\n"
    assert configure([good], [param]).weights == {"en": 0.5}


@pytest.mark.parametrize(
    "value,name",
    [
        ("@library.function_of_a_library()", "library.function_of_a_library"),
        ("@function_of_a_library()", "function_of_a_library"),
        ("@a/function_of_a_library()", "function_of_a_library"),
        ("[{'x': (@function_of_a_library(),)}]", "function_of_a_library"),
        ("@a/gin.singleton()", "gin.singleton"),
        ("@a/singleton()", "singleton"),
        ("@a/gin.macro()", "gin.macro"),
        ("@a/gin.constant()", "gin.constant"),
        ("@os.system()", "os.system"),
    ],
)
def test_a_value_names_only_what_this_package_defines(value, name, tmp_path):
    path = write(tmp_path / "a.gin", f"{GOOD}SamplingConfig.alpha = {value}\n")
    assert f"a.gin:4: no configurable named {name!r}" in mistake([path])


@pytest.mark.parametrize(
    "text,name",
    [
        ("library.function_of_a_library.x = 1", "library.function_of_a_library"),
        ("function_of_a_library:\n  x = 1", "function_of_a_library"),
        ("a/gin.singleton.constructor = @SamplingConfig()", "gin.singleton"),
        ("gin.macro.value = 1", "gin.macro"),
        ("gin.macro:\n  value = 1", "gin.macro"),
    ],
)
def test_a_binding_names_only_what_this_package_defines(text, name, tmp_path):
    path = write(tmp_path / "a.gin", text)
    assert f"a.gin:1: no configurable named {name!r}" in mistake([path])


def test_gins_constants_are_no_macros(tmp_path):
    path = write(tmp_path / "a.gin", GOOD)
    param = "SamplingConfig.alpha = %gin.REQUIRED"
    assert mistake([path], [param]).startswith("gin: %gin.REQUIRED is used but defined")


@pytest.mark.parametrize("value", ["1e999", "-1e999", "{'en': 1e999}", "(1, (1e999,))"])
def test_a_number_that_overflows_is_refused(value):
    """gin's own text of its settings leaves such a binding out."""
    said = mistake([], [f"SamplingConfig.alpha = {value}"])
    assert said.endswith(": SamplingConfig.alpha: a number is too large")


@pytest.mark.parametrize("text", ["A = %A", "A = %B\nB = %A", "A = @SamplingConfig()"])
def test_what_refers_to_itself_is_refused(text, tmp_path):
    path = write(tmp_path / "a.gin", f"{GOOD}SamplingConfig.alpha = %A\n{text}\n")
    assert "refers to itself" in mistake([path])


@pytest.mark.parametrize("depth", [300, 5000])
def test_a_value_that_is_nested_too_deeply_is_refused(depth, tmp_path):
    text = f"{GOOD}SamplingConfig.alpha = {'[' * depth}{']' * depth}\n"
    assert mistake([write(tmp_path / "a.gin", text)])


def test_files_that_include_two_others_each_come_to_an_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(60):
        write(f"{number}.gin", f"include '{number + 1}.gin'\n" * 2)
    write("60.gin", GOOD)
    assert "more than 100 files are included" in mistake(["0.gin"])


def test_any_number_of_files_can_be_given_on_the_command_line(tmp_path):
    path = write(tmp_path / "a.gin", GOOD)
    assert configure([path] * 150).alpha == 0.5


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_editors_may_write_a_mark_and_line_ends_of_their_own(mark, line_end, tmp_path):
    path = write(tmp_path / "a.gin", mark + GOOD.replace("\n", line_end))
    assert configure([path]) == configs.SamplingConfig()


PIECES = [
    *("import", "from", "as", "include", "@", "%", "SamplingConfig", ".", "alpha", "="),
    *("(", ")", "[", "]", "{", "}", ":", ",", "'", "'''", '"', "\\\n", "\n", "\r"),
    *("\t", "\f", " ", "  ", "\n  ", "#x", "u'a'", "b'a'", "-", "1", "1e9999", "0x"),
    *("None", "true", "gin.macro", "gin.singleton", "/", "A", "reader_root", "$", ";"),
    *("\ufeff", "\0", "é", "...", "sampling", "==", MODULE),
]


def test_any_text_ends_as_settings_or_in_one_line(ran):
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choices(PIECES, k=rng.randint(1, 14)))
        for files, params in ([write("a.gin", text)], []), ([], [text]):
            try:
                configure(files, params)
            except UserError as error:
                assert "\n" not in str(error), text
    assert not ran()
