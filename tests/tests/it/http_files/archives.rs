//! Directories as archives, both ways, and archives that mean harm.

use anyhow::{Context, ensure};
use serde_json::json;
use tests::Host;

use super::Files;

#[tokio::test(flavor = "multi_thread")]
async fn directories_go_up_and_down_as_archives() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        let long = "long-".repeat(40);
        let make = format!(
            "mkdir -p src/empty src/{long}; echo one > src/a.sh; chmod 755 src/a.sh; echo é > src/{long}/ö.txt; \
             ln -s a.sh src/link; printf %0600d 7 > src/pad; : > src/nothing; echo made"
        );
        ensure!(files.printed(&make).await? == "made\n");
        let packed = files.ask("GET", "/archive?path=src", &[], None).await?;
        ensure!(packed.status == 200 && packed.header("content-type") == "application/x-tar");
        ensure!(packed.bytes.len() % 512 == 0 && packed.header("content-disposition").contains("src.tar"));
        let head = files.ask("HEAD", "/archive?path=src", &[], None).await?;
        ensure!(head.status == 200 && head.bytes.is_empty());
        // The sandbox's own tar understands it, and ours understands what that makes.
        files.put("src.tar", packed.bytes.clone()).await?;
        let compared = "mkdir t && tar -xf src.tar -C t && rm src/link && diff -r src t; find t/a.sh -printf '%m\\n'";
        ensure!(files.printed(compared).await? == "755\n");
        let done = files.ask("PUT", "/archive?path=copy/deep", &[], Some(packed.bytes.into())).await?.expect(200)?;
        ensure!(done["files"] == 4 && done["directories"] == 1 && done["skipped_total"] == 0, "{done}");
        ensure!(files.printed("diff -r copy/deep t && find copy/deep/a.sh -printf '%m\\n'").await? == "755\n");
        for format in ["gnu", "pax", "ustar", "v7"] {
            let make =
                format!("cd src && ln -sf a.sh link && tar --format={format} --owner=0 --group=0 -cf ../{format}.tar a.sh pad link && echo made");
            ensure!(files.printed(&make).await? == "made\n");
            let tar = files.get(&format!("{format}.tar")).await?.bytes;
            let done = files.ask("PUT", &format!("/archive?path=from-{format}"), &[], Some(tar.into())).await?;
            let done = done.expect(200)?;
            ensure!(done["files"] == 2 && done["skipped"] == json!(["link (a symbolic link)"]), "{format}: {done}");
            ensure!(files.printed(&format!("cmp src/pad from-{format}/pad; cd from-{format} && ls")).await? == "a.sh\npad\n");
        }
        files.ask("GET", "/archive?path=src/pad", &[], None).await?.problem(422, "not_directory")?;
        files.ask("GET", "/archive?path=none", &[], None).await?.problem(404, "path_not_found")?;
        let compressed = [("content-encoding", "gzip")];
        let refused = files.ask("PUT", "/archive", &compressed, Some("x".into())).await?;
        refused.problem(415, "unsupported_media_type")?;
        Ok(())
    })
    .await;
}

/// A header of a tar archive, made by hand, with its content.
fn entry(name: &[u8], kind: u8, link: &str, mode: u32, size: u64, content: &[u8]) -> Vec<u8> {
    let mut block = vec![0_u8; 512];
    block[..name.len()].copy_from_slice(name);
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(100, &format!("{mode:07o}"));
    put(124, &format!("{size:011o}"));
    put(136, "00000000000");
    put(157, link);
    put(257, "ustar\u{0}00");
    put(148, "        ");
    block[156] = kind;
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\u{0} ").as_bytes());
    block.extend_from_slice(content);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

fn file(name: &str) -> Vec<u8> {
    entry(name.as_bytes(), b'0', "", 0o644, 1, b"x")
}

fn extended(kind: u8, records: &str) -> Vec<u8> {
    entry(b"extended", kind, "", 0o644, records.len() as u64, records.as_bytes())
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 1024]].concat()
}

/// An archive of one file.
pub(crate) fn archive_of(name: &str) -> Vec<u8> {
    archive(&[file(name)])
}

/// Archives that are not taken, with what is said of them.
fn hostile() -> Vec<(&'static str, Vec<u8>, u16, &'static str)> {
    const OUTSIDE: &str = "path_outside_workspace";
    const INVALID: &str = "invalid_archive";
    let good = archive(&[file("good")]);
    let cut = good[..600].to_vec();
    let mut damaged = good.clone();
    damaged[0] = b'h';
    let gnu = |name: &[u8]| entry(b"././@LongLink", b'L', "", 0, name.len() as u64, name);
    let plain = |name: &[u8], kind, size, content: &[u8]| entry(name, kind, "", 0o644, size, content);
    vec![
        ("above", archive(&[file("../escape")]), 403, OUTSIDE),
        ("above later", archive(&[file("a/../../escape")]), 403, OUTSIDE),
        ("above and back", archive(&[file("../box/escape")]), 403, OUTSIDE),
        ("absolute", archive(&[file("/etc/escape")]), 403, OUTSIDE),
        ("absolute inside", archive(&[file("/workspace/escape")]), 403, OUTSIDE),
        ("a directory above", archive(&[plain(b"../escape/", b'5', 0, b"")]), 403, OUTSIDE),
        ("a link above", archive(&[entry(b"../escape", b'2', "/etc", 0o777, 0, b"")]), 403, OUTSIDE),
        ("pax above", archive(&[extended(b'x', "18 path=../escape\n"), file("good")]), 403, OUTSIDE),
        ("gnu above", archive(&[gnu(b"../escape\0"), file("good")]), 403, OUTSIDE),
        ("through a link that is there", archive(&[file("outdir/escape")]), 403, OUTSIDE),
        ("onto a link that is there", archive(&[file("out")]), 403, OUTSIDE),
        ("a directory through a link", archive(&[plain(b"outdir/escape/", b'5', 0, b"")]), 403, OUTSIDE),
        ("cut short", cut, 422, INVALID),
        ("damaged", damaged, 422, INVALID),
        ("empty", Vec::new(), 422, INVALID),
        ("no archive", b"hello".to_vec(), 422, INVALID),
        ("compressed", b"\x1f\x8b\x08\0".repeat(200), 422, INVALID),
        ("size beyond the end", archive(&[plain(b"a", b'0', 1 << 30, b"x")]), 422, INVALID),
        ("a link with content", archive(&[plain(b"a", b'2', 512, &[0; 512])]), 422, INVALID),
        ("a directory with content", archive(&[plain(b"a/", b'5', 512, &[0; 512])]), 422, INVALID),
        ("a sparse file", archive(&[plain(b"a", b'S', 0, b"")]), 422, INVALID),
        ("an unknown kind", archive(&[plain(b"a", b'Z', 0, b"")]), 422, INVALID),
        ("a malformed pax record", archive(&[extended(b'x', "99 path=x\n"), file("a")]), 422, INVALID),
        ("two names", archive(&[gnu(b"one\0"), gnu(b"two\0"), file("a")]), 422, INVALID),
        ("a name for all", archive(&[extended(b'g', "10 path=x\n"), file("a")]), 422, INVALID),
        (
            "two sizes",
            archive(&[extended(b'x', "10 size=1\n"), extended(b'x', "10 size=9\n"), file("a")]),
            422,
            INVALID,
        ),
        (
            "two sizes in one header",
            archive(&[extended(b'x', "10 size=1\n10 size=9\n"), file("a")]),
            422,
            INVALID,
        ),
        (
            "two names in one header",
            archive(&[extended(b'x', "10 path=a\n10 path=b\n"), file("a")]),
            422,
            INVALID,
        ),
        ("a size that is no number", archive(&[extended(b'x', "11 size=-1\n"), file("a")]), 422, INVALID),
        ("a name that never ends", archive(&[gnu(&[b'a'; 1 << 20]), file("a")]), 422, INVALID),
        ("headers that never end", archive(&vec![extended(b'g', ""); 20]), 422, INVALID),
        ("a name that is not UTF-8", archive(&[plain(b"\xff", b'0', 1, b"x")]), 422, INVALID),
        ("a name with NUL", archive(&[extended(b'x', "12 path=a\0b\n"), file("a")]), 422, INVALID),
        ("no name", archive(&[plain(b"./", b'0', 0, b""), plain(b"", b'0', 0, b"")]), 422, INVALID),
        ("something behind the end", [good.clone(), good].concat(), 422, INVALID),
        ("a file where a directory is", archive(&[file("dir")]), 422, "is_directory"),
        ("a directory where a file is", archive(&[plain(b"there/", b'5', 0, b"")]), 409, "already_exists"),
        ("a file below a file", archive(&[file("there/x")]), 422, "not_directory"),
        ("a file onto a pipe", archive(&[file("pipe")]), 422, "not_regular_file"),
        ("a name that is too long", archive(&[gnu(&[b'a'; 300]), file("a")]), 422, "invalid_path"),
        (
            "a directory with a name that nothing holds",
            archive(&[gnu("a/".repeat(10_000).as_bytes()), plain(b"a/", b'5', 0, b"")]),
            422,
            "invalid_path",
        ),
        (
            "a directory below too many others",
            archive(&[gnu("a/".repeat(300).as_bytes()), plain(b"a/", b'5', 0, b"")]),
            422,
            "invalid_path",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_an_archive_is_refused_and_not_left_out() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        let deep = "import os\nos.mkdir('deep'); os.chdir('deep')\nfor i in range(64):\n    os.mkdir('d'); os.chdir('d')\nopen('lost', 'w')";
        files.printed(&format!("python3 -c \"{deep}\"; mkdir wide; cd wide; seq 10001 | xargs touch; mkdir ../shallow; echo made")).await?;
        for path in ["deep", "wide", "."] {
            let refused = files.ask("GET", &format!("/archive?path={path}"), &[], None).await?;
            let problem = refused.problem(422, "limit_exceeded").context(path)?;
            ensure!(problem["detail"].as_str().is_some_and(|text| text.contains("64 levels")), "{problem}");
        }
        // A part of it fits, with what is deepest in it.
        let part = files.ask("GET", "/archive?path=deep/d", &[], None).await?;
        ensure!(part.status == 200, "{}", part.status);
        let taken = files.ask("PUT", "/archive?path=shallow", &[], Some(part.bytes.into())).await?.expect(200)?;
        ensure!(taken["files"] == 1, "{taken}");
        ensure!(files.printed("find shallow -name lost | wc -l").await? == "1\n");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_archives_do_no_harm() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        let prepare = "mkdir -p box/dir; ln -s /etc box/outdir; ln -s /etc/passwd box/out; mkfifo box/pipe; echo kept > box/there; echo made";
        ensure!(files.printed(prepare).await? == "made\n");
        for (what, tar, status, code) in hostile() {
            let reply = files.ask("PUT", "/archive?path=box", &[], Some(tar.into())).await?;
            reply.problem(status, code).with_context(|| what.to_owned())?;
        }
        let look = "cat box/there; (cd box && ls -A); find / -name '*escape*' -newer box/there -not -path '/proc/*' -not -path '/sys/*' 2>/dev/null";
        let left = files.printed(look).await?;
        ensure!(left == "kept\ndir\ngood\nout\noutdir\npipe\nthere\n", "{left}");
        // More entries than are taken, each of which costs nobody anything.
        let entries = std::iter::repeat_n(entry(b"many/", b'5', "", 0o755, 0, b""), 100_001);
        let many = reqwest::Body::wrap_stream(futures_util::stream::iter(entries.map(Ok::<_, std::io::Error>)));
        files.ask("PUT", "/archive?path=box", &[], Some(many)).await?.problem(422, "limit_exceeded")?;
        ensure!(!files.printed("cd box && ls").await?.contains("many"));
        // What is no file or directory is left out, so nothing can be written through it, and no bit of privilege is kept.
        let special = |name: &str, kind, link: &str, mode| entry(name.as_bytes(), kind, link, mode, 0, b"");
        let tar = archive(&[
            special("l", b'2', "/etc", 0o777),
            file("l/escape"),
            special("hard", b'1', "/etc/passwd", 0o644),
            special("dev", b'3', "", 0o666),
            special("block", b'4', "", 0o666),
            special("fifo", b'6', "", 0o666),
            entry(b"suid", b'0', "", 0o4755, 1, b"x"),
            file("twice"),
            entry(b"twice", b'0', "", 0o600, 2, b"yy"),
        ]);
        let done = files.ask("PUT", "/archive?path=box2", &[], Some(tar.into())).await?.expect(200)?;
        ensure!(done["files"] == 4 && done["skipped_total"] == 5, "{done}");
        let left = files.printed("find box2 | sort | tr '\\n' ' '; find box2/suid -printf '%m\\n'; cat box2/twice; test -e /etc/escape || echo ' none'").await?;
        ensure!(left == "box2 box2/l box2/l/escape box2/suid box2/twice 755\nyy none\n", "{left}");

        // More than there is room for, and more than there are names for: an error, and no half of a file.
        let bomb = async |count: usize, size: usize| {
            let content = vec![7; size];
            let entries = (0..count).map(move |n| {
                let name = format!("bomb/{n}");
                Ok::<_, std::io::Error>(entry(name.as_bytes(), b'0', "", 0o644, size as u64, &content))
            });
            let body = reqwest::Body::wrap_stream(futures_util::stream::iter(entries));
            files.ask("PUT", "/archive", &[], Some(body)).await
        };
        files.printed("fallocate -l $(( $(df --output=avail -B1 . | tail -1) - 20 * 1024 * 1024 )) filler; ls").await?;
        // What is left when it is refused is less than what the API reads of it. Who is held up while still sending may not see why.
        if let Ok(reply) = bomb(22, 1024 * 1024).await {
            reply.problem(507, "no_space")?;
        }
        // One that a connection holds has been sent before anybody refuses it.
        bomb(1, 3 * 512 * 1024).await?.problem(507, "no_space")?;
        let halves = files.printed("find bomb -type f -not -size 1048576c; rm -r bomb filler; find . -name bomb").await?;
        ensure!(halves.is_empty(), "{halves}");
        Ok(())
    })
    .await;
}
