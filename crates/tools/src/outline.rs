//! The lines that show how a text is built: headings, and where things are defined.
//!
//! Told by the looks of single lines in linear time. No parser gets to see what a tenant wrote, any piece of a file will do, and a line that
//! only looks like a definition (in a comment, in a string) is shown too.

use std::sync::LazyLock;

use regex::Regex;

/// Lines longer than this are data and define nothing.
const LINE_BYTES: usize = 1_000;

/// Numbers (from 1) and texts of those lines, with their line ends; nothing when files of this name have none that are known.
pub(crate) fn of<'a>(path: &str, text: &'a str) -> Vec<(u64, &'a str)> {
    let Some(kind) = kind_of(path) else { return Vec::new() };
    let mut fence: Option<&str> = None;
    let mut outline = Vec::new();
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        if kind.fenced
            && let Some(mark) = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark))
        {
            fence = match fence {
                None => Some(mark),
                Some(open) if open == mark => None,
                Some(open) => Some(open),
            };
        } else if fence.is_none() && line.len() <= LINE_BYTES && kind.lines.is_match(line) {
            outline.push((number, line));
        }
    }
    outline
}

struct Kind {
    endings: &'static [&'static str],
    lines: Regex,
    /// What lies between fences is quoted.
    fenced: bool,
}

fn kind_of(path: &str) -> Option<&'static Kind> {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let ending = name.rsplit_once('.').map_or(name.as_str(), |(_, ending)| ending);
    KINDS.iter().find(|kind| kind.endings.contains(&ending))
}

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let kind = |endings, patterns: &[&str]| Kind {
        endings,
        lines: Regex::new(&patterns.join("|")).expect("a fixed pattern"),
        fenced: false,
    };
    vec![
        Kind { fenced: true, ..kind(&["md", "markdown", "mdx"], &[r"^ {0,3}#{1,6}\s"]) },
        kind(&["py", "pyi"], &[r"^\s*(async\s+def|def|class)\s"]),
        kind(
            &["rs"],
            &[
                r#"^\s*(pub(\([^)]*\))?\s+)?((default|const|async|unsafe|extern(\s+"[^"]*")?)\s+)*fn\s"#,
                r"^\s*(pub(\([^)]*\))?\s+)?(unsafe\s+)?(struct|enum|union|trait|mod|type|static|const)\s",
                r"^\s*(unsafe\s+)?impl[\s<]",
                r"^\s*macro_rules!",
            ],
        ),
        kind(
            &["js", "jsx", "mjs", "cjs", "ts", "tsx", "mts", "cts", "vue", "svelte"],
            &[
                r"^\s*(export\s+)?(default\s+)?(declare\s+)?(abstract\s+)?(async\s+)?(function\b|class\b|interface\s|enum\s|namespace\s|type\s+\w+[^=]*=)",
                r"^\s*(export\s+)?(const|let|var)\s+[\w$]+[^=]*=\s*(async\s*)?(\(|function\b|[\w$]+\s*=>)",
                r"^\s+((public|private|protected|static|async|get|set|readonly|override)\s+)*#?[\w$]+\([^)]*\)\s*(:[^={]+)?\{\s*$",
            ],
        ),
        kind(&["go"], &[r"^(package|func|type|var|const)\s"]),
        kind(
            &["java", "kt", "kts", "cs", "swift", "scala", "php", "dart"],
            &[
                r"^\s*((public|private|protected|internal|fileprivate|static|final|abstract|open|override|sealed|data|suspend|async|virtual|partial|readonly|case|mutating)\s+)*(class|interface|enum|record|struct|trait|object|protocol|extension|namespace|func|fun|function|def|init)\b",
                r"^\s*((public|private|protected|internal)\s+)[^=;]*\(",
            ],
        ),
        kind(
            &["c", "h", "cc", "cpp", "cxx", "hpp", "hh", "hxx"],
            &[
                r"^\s*(class|struct|enum|union|namespace|template|typedef)\b[^;]*$",
                r"^[A-Za-z_][\w\s*&:<>,~]*\([^;]*$",
                r"^\s*#\s*define\s",
            ],
        ),
        kind(&["rb"], &[r"^\s*(class|module|def)\s"]),
        kind(&["sh", "bash", "zsh"], &[r"^\s*(function\s+[\w-]+|[\w-]+\s*\(\s*\))"]),
        kind(&["sql"], &[r"(?i)^\s*(create|alter|drop)\s"]),
        kind(
            &["html", "htm", "xml"],
            &[r"(?i)<(h[1-6]|title|section|article|main|nav|header|footer|form|table)[\s>]"],
        ),
        kind(&["css", "scss", "less"], &[r"^[^\s{}][^{]*\{"]),
        kind(&["toml", "ini", "cfg", "conf"], &[r"^\s*\["]),
        kind(&["yaml", "yml"], &[r#"^[\w"'.-][^:]*:(\s|$)"#]),
        kind(&["makefile", "mk"], &[r"^[\w.%/-][^:=#]*:([^=]|$)"]),
        kind(&["tex"], &[r"^\s*\\(part|chapter|(sub)*section|paragraph)\*?\{"]),
    ]
});

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(path: &str, text: &str) -> Vec<String> {
        of(path, text).into_iter().map(|(number, line)| format!("{number} {}", line.trim_end())).collect()
    }

    #[test]
    fn headings_but_not_those_of_quoted_text() {
        let text = "# One\ntext\n```sh\n# a comment\n~~~\n```\n## Two\n#hashtag\n####### seven\n";
        assert_eq!(outline("/workspace/README.md", text), ["1 # One", "7 ## Two"]);
    }

    #[test]
    fn definitions_by_language() {
        for (path, text, expected) in [
            (
                "a.py",
                "import x\nclass A:\n    def f(self):\n        pass\nasync def g(): pass\ndefault = 1\n",
                &["2 class A:", "3     def f(self):", "5 async def g(): pass"][..],
            ),
            (
                "a.rs",
                "use x;\npub(crate) async fn f() {}\nimpl<T> A<T> {\n    let impls = 1;\npub struct B;\nfn_call();\n",
                &["2 pub(crate) async fn f() {}", "3 impl<T> A<T> {", "5 pub struct B;"],
            ),
            (
                "a.ts",
                "import a from 'a';\nexport default class A {\n  private async run(x: number): Promise<void> {\n    if (x) {\n    }\n  }\n}\nexport const f = async (a) => a;\nconst n = 1;\ntype T<A> = A[];\n",
                &[
                    "2 export default class A {",
                    "3   private async run(x: number): Promise<void> {",
                    "8 export const f = async (a) => a;",
                    "10 type T<A> = A[];",
                ],
            ),
            (
                "a.go",
                "package a\n\nfunc (s *S) Run() error {\n\treturn nil\n}\n",
                &["1 package a", "3 func (s *S) Run() error {"],
            ),
            (
                "A.java",
                "package a;\npublic final class A {\n    private int n = f(1);\n    public int f(int n) {\n",
                &["2 public final class A {", "4     public int f(int n) {"],
            ),
            (
                "a.c",
                "#include <a.h>\n#define N 1\nstatic int f(int n)\n{\n    return g(n);\n}\nint g(int);\n",
                &["2 #define N 1", "3 static int f(int n)"],
            ),
            ("a.sh", "set -e\nmain() {\n  echo hi\n}\n", &["2 main() {"]),
            ("Makefile", "a := b\nall: a b\n\tcc\n", &["2 all: a b"]),
            ("a.yaml", "a: 1\nb:\n  c: 2\n", &["1 a: 1", "2 b:"]),
            ("a.toml", "x = 1\n[a]\ny = [1]\n[[b]]\n", &["2 [a]", "4 [[b]]"]),
            ("a.csv", "class A\n", &[]),
            ("noending", "class A\n", &[]),
        ] {
            assert_eq!(outline(path, text), expected, "{path}");
        }
    }

    #[test]
    fn what_is_no_line_of_code_is_passed_over_quickly() {
        assert_eq!(outline("a.py", &format!("def {}\n", "x".repeat(5_000_000))), Vec::<String>::new());
        assert_eq!(outline("a.ts", &"    a".repeat(200).repeat(5_000)), Vec::<String>::new());
    }
}
