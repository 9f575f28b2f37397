"""The languages of released models, by the codes that their corpora have.

Sources: google-research/bert, multilingual.md; google-research/google-research,
rembert/README.md.
"""

from collections.abc import Iterable

# The codes of the Wikipedias of multilingual BERT's 104 languages: simplified and
# traditional Chinese are two of them, and one Wikipedia.
_MBERT = """
    af an ar ast az azb ba bar be bg bn bpy br bs ca ce ceb cs cv cy da de el en es
    et eu fa fi fr fy ga gl gu he hi hr ht hu hy id io is it ja jv ka kk kn ko ky la
    lb lmo lt lv mg min mk ml mn mr ms my nds ne new nl nn no oc pa pl pms pnb pt ro
    ru scn sco sh sk sl sq sr su sv sw ta te tg th tl tr tt uk ur uz vi vo war yo zh
"""
# The paper says 110 languages; its release lists 111 codes, which are mC4's: iw is
# Hebrew, and Latn romanised text.
_REMBERT = """
    af am ar az be bg bg-Latn bn bs ca ceb co cs cy da de el el-Latn en eo es et eu
    fa fi fil fr fy ga gd gl gu ha haw hi hi-Latn hmn hr ht hu hy id ig is it iw ja
    ja-Latn jv ka kk km kn ko ku ky la lb lo lt lv mg mi mk ml mn mr ms mt my ne nl
    no ny pa pl ps pt ro ru ru-Latn sd si sk sl sm sn so sq sr st su sv sw ta te tg
    th tr uk ur uz vi xh yi yo zh zh-Hans zh-Hant zh-Latn zu
"""
LISTS = {"mbert": _MBERT.split(), "rembert": _REMBERT.split()}


def expanded(languages: Iterable[str]) -> list[str]:
    """The languages, with those of a list in place of its name."""
    return [code for name in languages for code in LISTS.get(name, [name])]
