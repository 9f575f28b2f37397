"""Names in wikis of many languages: namespaces, disambiguation pages, end matter.

Names are compared after case folding and with underscores replaced by spaces.
"""

import re


def normal_form(name: str) -> str:
    """The form in which names are compared."""
    return " ".join(name.replace("_", " ").split()).casefold()


def names(listed: str) -> frozenset[str]:
    """The names of a comma-separated list, in the form in which they are compared."""
    return frozenset(normal_form(name) for name in listed.split(","))


# A dump lists its wiki's own names of namespaces, and `wikipedia.dump` replaces them by
# the English names in links. But no dump lists the aliases, such as Bild and Image for
# Datei and Fichier.
FILE_NAMESPACES = names("""
    file, image, media, datei, bild, fichier, archivo, ficheiro, arquivo, imagem,
    bestand, afbeelding, plik, grafika, файл, изображение, зображення, выява,
    датотека, слика, fil, tiedosto, kuva, soubor, súbor, obrázok, fájl, kép, fișier,
    fişier, imagine, dosya, resim, تصویر, پرونده, ملف, صورة, صوره, קובץ, תמונה, चित्र,
    ไฟล์, ภาพ, ファイル, 画像, 文件, 檔案, 档案, 图像, 圖像, 圖片, 图片, 파일, 그림,
    hình, berkas, gambar, fitxer, imatge, fitxategi, irudi, ficheru, imaxe, datoteka,
    slika, fails, attēls, vaizdas, fayl, şəkil, պատկեր, ფაილი, სურათი, চিত্র, ফাইল,
    படிமம், படம், దస్త్రం, బొమ్మ, ಚಿತ್ರ, പ്രമാണം, ചിത്രം, αρχείο, εικόνα, dosiero,
    skrá, mynd, íomhá, delwedd, larawan, faili, چوارگۆشە, پەڕگە, وێنە, दस्तऐवज, ਤਸਵੀਰ,
    ਫ਼ਾਈਲ, ຮູບ, ဖိုင်, រូបភាព, ឯកសារ, tập tin, immagine, imagen, ფაილი, სურათი
""")

CATEGORY_NAMESPACES = names("""
    category, kategorie, catégorie, categoría, categoria, categorie, kategoria,
    категория, категорія, катэгорыя, категорија, kategorija, kategori, luokka,
    kategória, kategorio, تصنيف, رده, קטגוריה, श्रेणी, หมวดหมู่, カテゴリ, 分类, 分類,
    분류, kateqoriya, κατηγορία, კატეგორია, կատեգորիա, বিষয়শ্রেণী, பகுப்பு, వర్గం,
    ವರ್ಗ, വർഗ്ഗം, वर्ग, flokkur, categori, catagóir, jamii, زمرہ, پۆل, ਸ਼੍ਰੇਣੀ, санат,
    turkum, төркем, thể loại
""")

# Prefixes of other projects; the text of their links is a part of the sentence.
SISTER_PROJECTS = names("""
    b, c, commons, d, iarchive, m, meta, mw, n, q, s, species, v, voy, w, wikibooks,
    wikidata, wikinews, wikipedia, wikiquote, wikisource, wikispecies, wikiversity,
    wikt, wiktionary
""")

# Codes of wikis: two or three letters, for some with an addition.
LANGUAGE_PREFIX = re.compile(
    r"(?:[a-z]{2,3}(?:-[a-z]{2,}){0,2}|simple|be-x-old|map-bms|cbk-zam|fiu-vro)"
)

_DISAMBIGUATION_TEMPLATES = names("""
    disambig, disambiguation, disamb, dab, disambiguation page, disambig-page,
    disambiguation cleanup, hndis, human name disambiguation, geodis, hospitaldis,
    place name disambiguation, airport disambiguation, mathdab, numberdis, schooldis,
    roaddis, letter-number combination disambiguation, letter disambiguation,
    biology disambiguation, callsigndis, chinese title disambiguation,
    genus disambiguation, mathematical disambiguation, mil-unit-dis,
    music disambiguation, phonetics disambiguation, road disambiguation,
    school disambiguation, species latin name disambiguation,
    species latin name abbreviation disambiguation, station disambiguation,
    synagogue disambiguation, wp disambig, letter-numbercombdisambig, begriffsklärung,
    bkl, begriffsklärungsseite, homonymie, paronymie,
    homonymie d'établissements scolaires ou universitaires, toponymie,
    arrondissements homonymes, cantons homonymes, communes françaises homonymes,
    paroisses homonymes, patronymie, unités homonymes, villes homonymes,
    personnes homonymes, saints homonymes, titres homonymes,
    bandeau standard pour page d'homonymie, desambiguación, desambig, desambiguacion,
    desambiguación de apellidos, disambigua, desambiguação, desambig-ini,
    desambiguação2, desambig2, dp, dpintro, doorverwijspagina, dpafkorting,
    ujednoznacznienie, strona ujednoznaczniająca, неоднозначность, многозначность,
    неоднозначность2, список однофамильцев, однофамильцы, багатозначність, disambigg,
    неадназначнасць, неадназначнасьць, вишезначна одредница, вишезначник, појаснување,
    пояснение, razdvojba, višeznačna odrednica, razločitev, rozcestník,
    rozlišovacia stránka, rozlišovací stránka, egyért, egyértelműsítő lap,
    egyértelműsítő, dezambiguizare, förgrening, gren, grensida, olika betydelser,
    flertydig, flertydig2, pekerside, peker, peiker, fleirtyding, täsmennyssivu,
    täsmennys, täpsustuslehekülg, nozīmju atdalīšana, nuorodinis,
    nuorodinis straipsnis, anlam ayrımı, anlam ayrım, dəqiqləşdirmə, αποσαφήνιση,
    kthjellim, argipen, desambiguació, homònims, homónimos, dixebra, apartigilo,
    discretiva, idirdhealú, soiléiriú, gwahaniaethu, aðgreining, disambiguasi,
    disambig info, nyahkekaburan, trang định hướng, định hướng, paglilinaw, maana,
    توضيح, صفحة توضيح, ابهام‌زدایی, ابهام زدایی, ضد ابہام, ضدابہام, פירושונים,
    פרושונים, बहुविकल्पी शब्द, बहुविकल्पी, निःसंदिग्धीकरण, দ্ব্যর্থতা নিরসন,
    பக்கவழி நெறிப்படுத்தல், అయోమయ నివృత్తి, ದ್ವಂದ್ವ ನಿವಾರಣೆ, വിവക്ഷകൾ, แก้กำกวม,
    หน้าแก้ความกำกวม, aimai, 曖昧さ回避, 人名の曖昧さ回避, 地名の曖昧さ回避,
    同名の地名, 消歧义, 消歧義, 消歧义页, 消歧義頁, 人名消歧义, 人名消歧義,
    地名消歧义, 地名消歧義, 동음이의, 동명이인, 동음이의어, 동음이의 문서,
    多音字消歧义, მრავალმნიშვნელოვანი, բազմիմաստություն, мағыналар
""")
_DISAMBIGUATION_TITLE = re.compile(
    r"[(（](?:disambiguation|begriffsklärung|homonymie|desambiguación|disambigua"
    r"|desambiguação|doorverwijspagina|ujednoznacznienie|значения|значення"
    r"|olika betydelser|flertydig|andre betydninger|täsmennyssivu|rozcestník"
    r"|egyértelműsítő lap|dezambiguizare|anlam ayrımı|αποσαφήνιση|desambiguació"
    r"|định hướng|disambiguasi|توضيح|ابهام‌زدایی|פירושונים|बहुविकल्पी|แก้ความกำกวม"
    r"|曖昧さ回避|消歧义|消歧義|동음이의)[)）]$",
    re.IGNORECASE,
)
_DISAMBIGUATION_WORD = re.compile(r"__\s*DISAMBIG\s*__", re.IGNORECASE)
_TEMPLATE_NAME = re.compile(r"\{\{([^{}|\n<]{2,80})")

# Sections that list sources, links, works or pictures and have no prose.
_END_SECTIONS = names("""
    references, reference, notes, notes and references, references and notes,
    footnotes, citations, citations and references, citations and notes, sources,
    source, works cited, bibliography, selected bibliography, further reading,
    external links, external link, see also, literature, literature cited,
    general references, primary sources, secondary sources, cited sources,
    notes and sources, references and sources, sources and references,
    references and further reading, further reading and references, explanatory notes,
    general bibliography, discography, filmography, endnotes, links, publications,
    selected publications, selected works, web links, related articles,
    notes and citations, related pages, other websites, other pages, image gallery,
    footnotes and references, general sources, selected discography,
    selected filmography, einzelnachweise, literatur, weblinks, siehe auch, quellen,
    anmerkungen, belege, quellen und literatur, anmerkungen und einzelnachweise,
    literatur und quellen, fussnoten, einzelnachweise und anmerkungen,
    werke (auswahl), schriften (auswahl), literatur (auswahl), diskografie,
    filmografie, filmografie (auswahl), veröffentlichungen,
    literatur und einzelnachweise, nachweise, galerie, bildergalerie, diskographie,
    quelle, publikationen, weiterführende literatur, einzelbelege,
    notes et références, références, bibliographie, voir aussi, liens externes,
    lien externe, articles connexes, article connexe, annexes, sources et références,
    sources et bibliographie, discographie, filmographie, liens et documents externes,
    bibliographie et sources, liens, références et notes, referencias,
    notas y referencias, bibliografía, enlaces externos, véase también, notas,
    referencias y notas, fuentes, discografía, filmografía, lecturas adicionales,
    galería, notas y bibliografía, bibliografía adicional, enlace externo,
    fuentes y referencias, note, bibliografia, collegamenti esterni, voci correlate,
    altri progetti, riferimenti, discografia, filmografia, note e riferimenti, fonti,
    pubblicazioni, galleria d'immagini, referências, ligações externas, ver também,
    notas e referências, ligações exteriores, leitura adicional,
    referências bibliográficas, galeria, fontes, referências e notas, bronnen,
    referenties, externe links, externe link, zie ook, literatuur, noten,
    bibliografie, noten en/of referenties, bronnen en noten, voetnoten,
    bronvermelding, discografie, bron, publicaties, trivia en bronnen, przypisy,
    linki zewnętrzne, zobacz też, uwagi, literatura, dyskografia,
    literatura dodatkowa, źródła, примечания, ссылки, литература, см. также,
    источники, библиография, дискография, фильмография, галерея, публикации,
    примечания и ссылки, литература и ссылки, избранная библиография,
    труды и публикации, избранные труды, примітки, посилання, література, див. також,
    джерела, бібліографія, дивись також, виноски, джерела та література,
    джерела та примітки, фільмографія, дискографія, зноскі, крыніцы, спасылкі,
    літаратура, гл. таксама, бележки, външни препратки, източници, вижте също,
    литература и източници, бележки и източници, референце, извори, спољашње везе,
    види још, напомене, наводи, белешке, надворешни врски, поврзано, izvori,
    vanjske poveznice, vidi još, spoljašnje veze, bilješke, vanjske veze,
    također pogledajte, viri, zunanje povezave, glej tudi, sklici, opombe, napomene,
    odkazy, související články, externí odkazy, poznámky, poznámky a reference,
    referencie, externé odkazy, pozri aj, iné projekty, zdroj, zdroje,
    referencie a bibliografia, jegyzetek, források, további információk,
    külső hivatkozások, irodalom, lásd még, kapcsolódó szócikkek, fordítás,
    források és jegyzetek, galéria, referințe, legături externe, vezi și,
    lectură suplimentară, surse, galerie de imagini, note și referințe,
    note bibliografice, referenser, källor, externa länkar, se även, litteratur,
    noter, fotnoter, vidare läsning, tryckta källor, diskografi, filmografi,
    bibliografi, källor och litteratur, webbkällor, referencer, eksterne henvisninger,
    se også, kilder, fodnoter, eksterne links, galleri, kilder/henvisninger,
    henvisninger, kilder og henvisninger, referanser, eksterne lenker, kjelder,
    bakgrunnsstoff, sjå også, litteratur og kilder, kildelenker, lähteet, viitteet,
    aiheesta muualla, katso myös, kirjallisuutta, kirjallisuus, huomautukset, linkit,
    diskografia, viited, välislingid, vaata ka, kirjandus, allikad, atsauces,
    ārējās saites, skatīt arī, piezīmes un atsauces, šaltiniai, nuorodos, literatūra,
    taip pat skaitykite, išnašos, tilvísanir, heimildir, tenglar, tengt efni,
    tagairtí, foinsí, naisc sheachtracha, cyfeiriadau, dolenni allanol, gweler hefyd,
    ffynonellau, nodiadau, kaynakça, kaynaklar, dış bağlantılar, ayrıca bakınız,
    notlar, dipnotlar, konuyla ilgili yayınlar, i̇stinadlar, istinadlar,
    xarici keçidlər, həmçinin bax, i̇stinad, mənbə, ədəbiyyat, дереккөздер,
    сілтемелер, сыртқы сілтемелер, manbalar, havolalar, искәрмәләр, сылтамалар,
    әдәбият, пайвандҳо, эзоҳ, παραπομπέσ, εξωτερικοί σύνδεσμοι, δείτε επίσησ,
    βιβλιογραφία, πηγέσ, σημειώσεισ, υποσημειώσεισ, referime, lidhje të jashtme,
    shih edhe, burimet, referències, enllaços externs, vegeu també,
    notes i referències, bibliografia complementària, erreferentziak, kanpo estekak,
    ligazóns externas, véxase tamén, outros artigos, referencies, enllaces esternos,
    ver tamién, notes y referencies, referencoj, eksteraj ligiloj, vidu ankaŭ, notoj,
    fontoj, eksteraj paĝoj, notae, nexus externi, vide etiam, bibliographia,
    referensi, pranala luar, lihat pula, lihat juga, catatan kaki, daftar pustaka,
    bacaan lanjutan, rujukan, pautan luar, sumber, bacaan lanjut, tham khảo,
    liên kết ngoài, xem thêm, chú thích, ghi chú, thư mục, đọc thêm, nguồn, chú giải,
    mga sanggunian, mga kawing panlabas, tingnan din, talababa, sanggunian, marejeo,
    viungo vya nje, tanbihi, tazama pia, verwysings, eksterne skakels, sien ook,
    bronne, المراجع, مراجع, المصادر, مصادر, وصلات خارجية, روابط خارجية, انظر أيضا,
    انظر أيضًا, انظر ايضا, طالع أيضا, طالع أيضًا, الهوامش, هوامش, ملاحظات,
    مصادر ومراجع, المراجع والمصادر, معرض صور, قراءات أخرى, اقرأ أيضا, اقرأ أيضًا,
    مواقع خارجيه, وصلات خارجيه, معرض الصور, حواش, المراجع والهوامش, مراجع ومصادر,
    منابع, پانویس, پیوند به بیرون, جستارهای وابسته, یادداشت‌ها, یادداشت, پانویس‌ها,
    پیوندهای بیرونی, پیوندهای خارجی, پی‌نوشت, ارجاعات, منابع و پانویس, نگارخانه,
    کتاب‌شناسی, مطالعه بیشتر, جُستارهای وابسته, فهرست منابع, حوالہ جات, بیرونی روابط,
    مزید دیکھیے, سەرچاوەکان, بەستەرە دەرەکییەکان, سرچینې, הערות שוליים,
    קישורים חיצוניים, ראו גם, לקריאה נוספת, ביאורים, גלריה, מקורות, גלריית תמונות,
    ספרים, ספריו, ביבליוגרפיה, דיסקוגרפיה, פילמוגרפיה, לקריאה נוספת וקישורים חיצוניים,
    כתביו, सन्दर्भ, संदर्भ, बाहरी कड़ियाँ, बाहरी कड़ियां, इन्हें भी देखें,
    यह भी देखें, टिप्पणी, टीका टिप्पणी, स्रोत, टिप्पणियाँ, सन्दर्भ ग्रन्थ,
    सन्दर्भग्रन्थ, बाह्य सूत्र, बाहरी सूत्र, ग्रंथसूची, चित्र दीर्घा, इन्हेंभीदेखें,
    बाहरी सम्बन्ध, हेसुद्धा पाहा, बाह्य दुवे, हे सुद्धा पहा, संदर्भ आणि नोंदी,
    तथ्यसूत्र, তথ্যসূত্র, বহিঃসংযোগ, আরও দেখুন, আরো দেখুন, পাদটীকা, গ্রন্থপঞ্জি, টীকা,
    மேற்கோள்கள், வெளி இணைப்புகள், வெளியிணைப்புகள், இவற்றையும் பார்க்கவும், உசாத்துணை,
    మూలాలు, బయటి లింకులు, ఇవి కూడా చూడండి, ಉಲ್ಲೇಖಗಳು, ಬಾಹ್ಯ ಸಂಪರ್ಕಗಳು, അവലംബം,
    പുറത്തേക്കുള്ള കണ്ണികൾ, പുറം കണ്ണികൾ, ഇതും കാണുക, ਹਵਾਲੇ, ਬਾਹਰੀ ਲਿੰਕ, સંદર્ભ,
    બાહ્ય કડીઓ, ආශ්‍රිත, මූලාශ්‍ර, यो पनि हेर्नुहोस्, बाह्य लिङ्कहरू, सन्दर्भ सामग्री,
    อ้างอิง, แหล่งข้อมูลอื่น, ดูเพิ่ม, เชิงอรรถ, หมายเหตุ, บรรณานุกรม, รายการอ้างอิง,
    แหล่งข้อมูล, หมายเหตุและอ้างอิง, ອ້າງອີງ, ကိုးကား, ပြင်ပလင့်ခ်များ, ឯកសារយោង,
    ឯកសារពិគ្រោះ, 脚注, 注釈, 出典, 参考文献, 関連項目, 外部リンク, 注釈・出典,
    関連文献, 関連書籍, 参照, 註, 注, 参考資料, ギャラリー, 脚注・出典, 注釈と出典,
    主な著書, ディスコグラフィ, ディスコグラフィー, 関連作品, 書誌情報, 出典・脚注,
    参见, 參見, 外部链接, 外部連結, 外部連接, 外部鏈接, 注释, 註釋, 注釋, 参考资料,
    參考資料, 參考文獻, 註解, 脚註, 腳註, 延伸阅读, 延伸閱讀, 参考来源, 參考來源,
    备注, 備註, 资料来源, 資料來源, 图集, 圖集, 图库, 圖庫, 画廊, 畫廊, 扩展阅读,
    相关条目, 相關條目, 参看, 參看, 来源, 來源, 注解, 附注, 附註, 睇埋, 出面網頁,
    參考, 参考, 外部链结, 外部鏈結, 另见, 另見, 相关链接, 각주, 같이 보기, 외부 링크,
    참고 문헌, 참고자료, 참고 자료, 주석, 출처, 바깥 고리, 함께 보기, 내용주, 참조주,
    갤러리, 주해, 관련 문헌, სქოლიო, რესურსები ინტერნეტში, ლიტერატურა, იხილეთ აგრეთვე,
    ծանոթագրություններ, արտաքին հղումներ, գրականություն, տես նաեւ, gallery, weblink,
    endnoten, quellenangaben, fuss-/endnoten, vedi anche, veja também,
    externe verwijzingen, externe verwijzing, voetnoot, ulkoiset linkit, linkkejä,
    enllaços, даље читање, зовнішні посилання, сноски, 外部連结, 外部连接, 脚注欄,
    외부링크, 바깥고리, 바깥 링크, 바깥링크, 외부 고리, 외부고리, 주석 및 참고 자료,
    주석 및 참고자료, 주석 및 참고 출처, อ่านเพิ่มเติม, المصادر والمراجع, منبع,
    hivatkozások, megjegyzések, nožki, nóžki, حوالہ, حوالا, خارجي ڳنڌڻا, وڌيڪ ڏسو,
    ekstera ligilo, eksteraj ligoj, تێبینییەکان, خوێندنەوەی زیاتر, ئەمانەش ببینە,
    لينكات برانيه, لينكات, شوف كمان
""")


def is_disambiguation(title: str, wikitext: str) -> bool:
    """True if the title, a template or a magic word marks a disambiguation page."""
    if title.endswith((")", "）")) and _DISAMBIGUATION_TITLE.search(title):
        return True
    if "__" in wikitext and _DISAMBIGUATION_WORD.search(wikitext):
        return True
    return any(
        normal_form(name) in _DISAMBIGUATION_TEMPLATES
        for name in _TEMPLATE_NAME.findall(wikitext)
    )


def is_end_section(heading: str) -> bool:
    """True for the heading of references, links, lists of works and the like."""
    return normal_form(heading).rstrip(" :：") in _END_SECTIONS
