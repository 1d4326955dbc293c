"""Text of a document, on stdout; what is known of it as one line of JSON on stderr.

Runs in the sandbox as the tool's user. What it reads is hostile: everything has a limit, and every way to fail a code.
"""

import json
import os
import re
import stat
import sys
import zipfile

FILE_BYTES = 100 * 1024 * 1024
UNPACKED_BYTES = 256 * 1024 * 1024
PARTS = 20_000
TEXT_BYTES = 8 * 1024 * 1024
PAGES = 500
OCR_PAGES = 10
OCR_PIXELS = 50_000_000
CELLS = 200_000
MEMORY_BYTES = 2 * 1024 * 1024 * 1024


class Refused(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code, self.message = code, message


class Full(Exception):
    """Enough text was written."""


class Out:
    def __init__(self, markdown, budget):
        self.markdown, self.left, self.cut = markdown, TEXT_BYTES, False
        # The last page that begins within the bytes that will be shown. Said apart from the text, in which a document could say anything.
        self.budget, self.reached = budget, None

    def write(self, text):
        data = text.replace("\0", "\ufffd").encode("utf-8", "replace")
        if len(data) > self.left:
            data, self.cut = data[: self.left].decode("utf-8", "ignore").encode(), True
        self.left -= len(data)
        sys.stdout.buffer.write(data)
        if self.cut:
            raise Full

    def page(self, number, word):
        if TEXT_BYTES - self.left < self.budget:
            self.reached = number
        self.write(f"<!-- {word} {number} -->\n" if self.markdown else f"[{word} {number}]\n")

    def table(self, rows):
        rows = [[cell(value) for value in row] for row in rows]
        rows = [row for row in rows if any(row)]
        if not rows:
            return
        if not self.markdown:
            for row in rows:
                self.write("\t".join(row).rstrip() + "\n")
            self.write("\n")
            return
        width = max(len(row) for row in rows)
        for index, row in enumerate(rows):
            row = [value.replace("|", "\\|") for value in row] + [""] * (width - len(row))
            self.write("| " + " | ".join(row) + " |\n")
            if index == 0:
                self.write("|" + "---|" * width + "\n")
        self.write("\n")


def cell(value):
    return "" if value is None else " ".join(str(value).split())


def lacks(what):
    return Refused("image_lacks", f"the sandbox's image lacks {what}, which reading this document needs")


def need(module, what=None):
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise lacks(what or f"the Python package {module}") from None


def chosen(pages, total):
    """Page numbers of `1-3,7` that there are, in order, and whether the limit cut some off."""
    if not pages:
        numbers = range(1, total + 1)
    else:
        picked = set()
        for part in pages.split(","):
            first, _, last = part.partition("-")
            low = int(first)
            high = min(int(last) if last else (total if part.endswith("-") else low), total)
            picked.update(range(low, min(high, low + 2 * PAGES) + 1))
        numbers = sorted(number for number in picked if number <= total)
        if not numbers:
            raise Refused("invalid_arguments", f"pages {pages}: the document has {total}")
    return list(numbers[:PAGES]), len(numbers) > PAGES


def run(arguments, limit=120):
    import subprocess

    try:
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit)
    except FileNotFoundError:
        raise lacks(arguments[0]) from None
    except subprocess.TimeoutExpired:
        raise Refused("invalid_document", f"{arguments[0]} did not come to an end with this document") from None
    return done


def ocr(path):
    """Text of a picture."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = OCR_PIXELS
    try:
        with Image.open(path) as image:
            if image.width * image.height > OCR_PIXELS:
                raise Refused("file_too_large", f"the picture has more than {OCR_PIXELS} pixels")
    except Refused:
        raise
    except Exception as error:
        raise Refused("invalid_document", f"this is not a whole picture ({type(error).__name__})") from None
    done = run(["tesseract", path, "stdout"])
    if done.returncode != 0:
        raise Refused("invalid_document", "no text can be recognised in this picture")
    return done.stdout.decode("utf-8", "replace").strip()


def read_pdf(path, out, ask):
    pypdf = need("pypdf")
    import logging

    logging.disable(logging.CRITICAL)
    reader = pypdf.PdfReader(path)
    if reader.is_encrypted and not reader.decrypt(""):
        raise Refused("encrypted_document", "the document is encrypted and needs a password")
    total = len(reader.pages)
    numbers, cut = chosen(ask["pages"], total)
    about = {"pages": total, "word": "page", "cut": cut, "ocr_pages": 0, "read": []}
    ask["about"] = about
    for first, last in stretches(numbers):
        for number, text in zip(range(first, last + 1), texts(path, reader, first, last)):
            page = reader.pages[number - 1]
            if not text.strip() and ask["ocr"] != "never" and about["ocr_pages"] < OCR_PAGES and has_pictures(page):
                text = ocr_of_page(path, number)
                about["ocr_pages"] += 1
            out.page(number, "page")
            out.write(text + "\n\n")
            about["read"].append(number)


def stretches(numbers):
    """Runs of at most 50 pages that follow each other."""
    first = last = None
    for number in numbers:
        if first is not None and number == last + 1 and number - first < 50:
            last = number
            continue
        if first is not None:
            yield first, last
        first = last = number
    if first is not None:
        yield first, last


def texts(path, reader, first, last):
    try:
        done = run(["pdftotext", "-layout", "-f", str(first), "-l", str(last), "-enc", "UTF-8", path, "-"])
        pages = done.stdout.decode("utf-8", "replace").split("\f")
        if done.returncode == 0 and len(pages) >= last - first + 1:
            return [page.strip("\n") for page in pages]
    except Refused:
        pass
    return [(reader.pages[number - 1].extract_text() or "").strip("\n") for number in range(first, last + 1)]


def has_pictures(page):
    resources = page.get("/Resources")
    resources = resources.get_object() if resources is not None else {}
    return bool(resources.get("/XObject"))


def ocr_of_page(path, number):
    import tempfile

    with tempfile.TemporaryDirectory(prefix=".toolhost-ocr-") as folder:
        target = os.path.join(folder, "page")
        # A page as large as a poster must not become a picture as large as a house.
        done = run(["pdftoppm", "-f", str(number), "-l", str(number), "-singlefile", "-scale-to", "2400", "-png", path, target])
        if done.returncode != 0 or not os.path.exists(target + ".png"):
            return ""
        return ocr(target + ".png")


def check_package(path):
    """Zip bombs and documents that declare entities are refused before a library sees them."""
    try:
        with zipfile.ZipFile(path) as package:
            parts = package.infolist()
            if len(parts) > PARTS:
                raise Refused("file_too_large", f"the document has more than {PARTS} parts")
            left = UNPACKED_BYTES
            for part in parts:
                if part.flag_bits & 1:
                    raise Refused("encrypted_document", "the document is encrypted and needs a password")
                is_xml = part.filename.endswith((".xml", ".rels"))
                with package.open(part) as data:
                    tail = b""
                    while piece := data.read(1024 * 1024):
                        left -= len(piece)
                        if left < 0:
                            raise Refused("file_too_large", f"the document unpacks to more than {UNPACKED_BYTES} bytes")
                        window = (tail + piece).replace(b"\0", b"")
                        if is_xml and re.search(rb"<!(DOCTYPE|ENTITY)", window, re.IGNORECASE):
                            raise Refused("invalid_document", "the document declares entities, which documents of this kind never do")
                        tail = piece[-64:]
    except zipfile.BadZipFile:
        raise Refused("invalid_document", "the document is damaged or cut short") from None


def read_docx(path, out, ask):
    docx = need("docx", "the Python package python-docx")
    check_package(path)
    document = docx.Document(path)
    ask["about"] = {"pages": 1, "word": "part", "cut": False, "ocr_pages": 0, "read": [1]}
    from docx.table import Table
    from docx.text.paragraph import Paragraph

    for block in document.iter_inner_content():
        if isinstance(block, Table):
            out.table([[cell_.text for cell_ in row.cells] for row in block.rows])
        elif isinstance(block, Paragraph):
            text, style = block.text.strip(), (block.style.name or "") if block.style is not None else ""
            if not text:
                continue
            heading = re.match(r"Heading (\d)", style)
            if out.markdown and style == "Title":
                text = "# " + text
            elif out.markdown and heading:
                text = "#" * min(int(heading[1]), 6) + " " + text
            elif style.startswith("List"):
                text = "- " + text
            out.write(text + "\n\n")


def read_xlsx(path, out, ask):
    openpyxl = need("openpyxl")
    check_package(path)
    book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
    names = book.sheetnames
    numbers, cut = chosen(ask["pages"], len(names))
    about = {"pages": len(names), "word": "sheet", "cut": cut, "ocr_pages": 0, "read": []}
    ask["about"] = about
    left = CELLS
    for number in numbers:
        sheet = book[names[number - 1]]
        out.page(number, "sheet")
        out.write(("## " if out.markdown else "") + cell(sheet.title) + "\n\n")
        rows = []
        for row in getattr(sheet, "iter_rows", lambda **_: [])(values_only=True):
            left -= len(row)
            if left < 0:
                about["cut"] = True
                break
            rows.append(row)
        while rows and not any(value is not None for value in rows[-1]):
            rows.pop()
        width = max((index + 1 for row in rows for index, value in enumerate(row) if value is not None), default=0)
        out.table([row[:width] for row in rows])
        about["read"].append(number)


def read_pptx(path, out, ask):
    pptx = need("pptx", "the Python package python-pptx")
    check_package(path)
    deck = pptx.Presentation(path)
    slides = list(deck.slides)
    numbers, cut = chosen(ask["pages"], len(slides))
    about = {"pages": len(slides), "word": "slide", "cut": cut, "ocr_pages": 0, "read": []}
    ask["about"] = about

    def shapes(group, depth=0):
        for shape in group:
            if depth < 8 and getattr(shape, "shapes", None) is not None:
                yield from shapes(shape.shapes, depth + 1)
            else:
                yield shape

    for number in numbers:
        slide = slides[number - 1]
        out.page(number, "slide")
        for shape in shapes(slide.shapes):
            if getattr(shape, "has_table", False):
                out.table([[cell_.text for cell_ in row.cells] for row in shape.table.rows])
            elif getattr(shape, "has_text_frame", False) and shape.text_frame.text.strip():
                is_title = slide.shapes.title is not None and shape.shape_id == slide.shapes.title.shape_id
                out.write(("## " if out.markdown and is_title else "") + shape.text_frame.text.strip() + "\n\n")
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            notes = slide.notes_slide.notes_text_frame.text.strip()
            if notes:
                out.write("Notes: " + notes + "\n\n")
        about["read"].append(number)


def read_ipynb(path, out, ask):
    with open(path, encoding="utf-8", errors="replace") as file:
        book = json.load(file)
    cells = book.get("cells") if isinstance(book, dict) else None
    if not isinstance(cells, list):
        raise Refused("invalid_document", "this is not a notebook")
    numbers, cut = chosen(ask["pages"], max(len(cells), 1))
    about = {"pages": len(cells), "word": "cell", "cut": cut, "ocr_pages": 0, "read": []}
    ask["about"] = about
    metadata = book.get("metadata") if isinstance(book.get("metadata"), dict) else {}
    language = metadata.get("kernelspec", {}).get("language", "python") if isinstance(metadata.get("kernelspec"), dict) else "python"

    def joined(value):
        return "".join(map(str, value)) if isinstance(value, list) else str(value or "")

    for number in numbers:
        one = cells[number - 1] if number <= len(cells) else {}
        if not isinstance(one, dict):
            continue
        out.page(number, "cell")
        source = joined(one.get("source")).rstrip("\n")
        if one.get("cell_type") != "code":
            out.write(source + "\n\n")
        else:
            out.write(f"```{cell(language)}\n{source}\n```\n\n" if out.markdown else source + "\n\n")
            for output in one.get("outputs") or []:
                if not isinstance(output, dict):
                    continue
                data = output.get("data") if isinstance(output.get("data"), dict) else {}
                text = joined(output.get("text") or data.get("text/plain") or output.get("traceback"))
                text = re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip("\n")
                if text:
                    out.write(f"```\n{text}\n```\n\n" if out.markdown else text + "\n\n")
        about["read"].append(number)


def read_html(path, out, ask):
    bs4 = need("bs4", "the Python package beautifulsoup4")
    with open(path, "rb") as file:
        soup = bs4.BeautifulSoup(file.read(), "html.parser")
    ask["about"] = {"pages": 1, "word": "part", "cut": False, "ocr_pages": 0, "read": [1]}
    for gone in soup(["script", "style", "noscript", "template", "svg", "head"]):
        gone.decompose()
    blocks = ["h1", "h2", "h3", "h4", "h5", "h6", "p", "li", "pre", "blockquote", "table", "td", "dt", "dd", "figcaption"]
    for block in soup.find_all(blocks):
        if block.find_parent(["table", "pre"]) is not None:
            continue
        if block.name == "table":
            out.table([[one.get_text(" ", strip=True) for one in row.find_all(["td", "th"])] for row in block.find_all("tr")])
            continue
        if block.name in ("blockquote", "dd", "li") and block.find(["p", "li"]) is not None:
            continue
        if block.name == "pre":
            text = block.get_text().strip("\n")
            text = f"```\n{text}\n```" if out.markdown else text
        else:
            for link in block.find_all("a", href=True) if out.markdown else []:
                if str(link["href"]).startswith(("http://", "https://")):
                    link.replace_with(f"[{link.get_text(' ', strip=True)}]({link['href']})")
            text = " ".join(block.get_text(" ").split())
            if out.markdown and block.name[0] == "h" and block.name[1:].isdigit():
                text = "#" * int(block.name[1:]) + " " + text
            elif block.name == "li":
                text = "- " + text
        if text.strip():
            out.write(text + "\n\n")
    if out.left == TEXT_BYTES:
        out.write("\n".join(line.strip() for line in soup.get_text("\n").splitlines() if line.strip()) + "\n")


def read_image(path, out, ask):
    if ask["ocr"] == "never":
        raise Refused("unsupported_document", "a picture has text only by ocr, and ocr is never")
    need("PIL", "the Python package pillow")
    ask["about"] = {"pages": 1, "word": "page", "cut": False, "ocr_pages": 1, "read": [1]}
    out.write(ocr(path) + "\n")


READERS = {
    "pdf": read_pdf,
    "docx": read_docx,
    "xlsx": read_xlsx,
    "pptx": read_pptx,
    "ipynb": read_ipynb,
    "html": read_html,
    "image": read_image,
}


def kind_of(path, head):
    ending = os.path.splitext(path)[1].lower()
    if head.lstrip()[:5] == b"%PDF-" or b"%PDF-" in head[:1024]:
        return "pdf"
    if head[:4] == b"PK\x03\x04":
        try:
            with zipfile.ZipFile(path) as package:
                names = set(package.namelist()[:PARTS])
        except zipfile.BadZipFile:
            names = set()
        for kind, part in (("docx", "word/document.xml"), ("xlsx", "xl/workbook.xml"), ("pptx", "ppt/presentation.xml")):
            if part in names:
                return kind
        if ending in (".docx", ".xlsx", ".pptx", ".docm", ".xlsm", ".pptm"):
            raise Refused("invalid_document", "the document is damaged or cut short")
        return None
    if head[:8] == b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1":
        if ending in (".docx", ".xlsx", ".pptx"):
            raise Refused("encrypted_document", "the document is encrypted and needs a password")
        raise Refused("unsupported_document", "this is an Office document of before 2007; save it as docx, xlsx or pptx")
    magic = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*", b"BM")
    if head.startswith(magic) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP"):
        return "image"
    if ending == ".ipynb":
        return "ipynb"
    if ending in (".html", ".htm", ".xhtml") or re.match(rb"\s*(<!doctype html|<html)", head, re.IGNORECASE):
        return "html"
    if ending in (".pdf", ".docx", ".xlsx", ".pptx", ".png", ".jpg", ".jpeg"):
        raise Refused("invalid_document", f"the file is named {ending} and is something else, or damaged")
    return None


def limit_memory():
    import resource

    for what, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, 256 * 1024 * 1024), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, hard))


def main():
    ask = json.loads(sys.argv[1])
    ask["about"] = {"pages": 0, "word": "page", "cut": False, "ocr_pages": 0, "read": []}
    out, kind = Out(ask["format"] == "markdown", ask["budget"]), None
    answer = {}
    try:
        limit_memory()
        path = ask["path"]
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise Refused("not_regular_file", "this is not a regular file")
        if about.st_size > FILE_BYTES:
            raise Refused("file_too_large", f"the document has more than {FILE_BYTES} bytes")
        head = os.pread(descriptor, 4096, 0)
        os.close(descriptor)
        kind = kind_of(path, head)
        if kind is None:
            raise Refused("unsupported_document", "this is none of pdf, docx, xlsx, pptx, ipynb, html, or a picture; read_file reads text")
        READERS[kind](path, out, ask)
    except Full:
        pass
    except Refused as refused:
        answer = {"code": refused.code, "message": refused.message}
    except FileNotFoundError as error:
        answer = {"code": "path_not_found", "message": error.strerror}
    except PermissionError as error:
        answer = {"code": "permission_denied", "message": error.strerror}
    except MemoryError:
        answer = {"code": "file_too_large", "message": "reading this document takes more memory than there is"}
    except RecursionError:
        answer = {"code": "invalid_document", "message": "the document is nested too deeply"}
    except Exception as error:
        kind_of_error = type(error).__name__
        answer = {"code": "invalid_document", "message": f"the document is damaged, cut short or not what it says ({kind_of_error})"}
    sys.stdout.flush()
    answer.update(ask["about"], kind=kind, full=out.cut, reached=out.reached)
    sys.stderr.write("\n" + json.dumps(answer) + "\n")


main()
