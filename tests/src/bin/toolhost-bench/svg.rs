//! A small writer of pictures: shapes and words in SVG, legible on a light and on a dark page.

use std::fmt::Write;

/// Colours by role. A page that is dark says so, and gets the second set.
const STYLE: &str = "
    svg { --page: #ffffff; --text: #1f2328; --faint: #59636e; --line: #d1d9e0; --good: #1a7f37; --away: #bc4c00; --one: #0969da; --two: #8250df; --three: #1a7f37; }
    @media (prefers-color-scheme: dark) {
        svg { --page: #0d1117; --text: #f0f6fc; --faint: #9198a1; --line: #3d444d; --good: #3fb950; --away: #f0883e; --one: #4493f8; --two: #ab7df8; --three: #3fb950; }
    }
    text { font: 13px ui-sans-serif, system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: var(--text); }
    .title { font-size: 17px; font-weight: 600; }
    .faint { fill: var(--faint); font-size: 12px; }
    .small { font-size: 11px; }
    .number { font-variant-numeric: tabular-nums; }
";

/// Where words stand in relation to their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// After it.
    Start,
    /// Around it.
    Middle,
    /// Before it.
    End,
}

/// A picture that is being drawn, in pixels from the upper left corner.
#[derive(Debug, Default)]
pub(crate) struct Picture(String);

impl Picture {
    /// Words on a line. Classes: `title`, `faint`, `number`, or none.
    pub(crate) fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, words: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let words = escaped(words);
        let _ = writeln!(
            self.0,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" class="{class}">{words}</text>"#
        );
    }

    /// A straight line in a colour of the style.
    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.0,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="var(--{colour})" stroke-width="{width}"/>"#
        );
    }

    /// A filled circle.
    pub(crate) fn dot(&mut self, (x, y): (f64, f64), radius: f64, colour: &str) {
        let _ = writeln!(self.0, r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="var(--{colour})"/>"#);
    }

    /// A filled rectangle from its upper left corner.
    pub(crate) fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str) {
        let _ = writeln!(
            self.0,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2" fill="var(--{colour})"/>"#
        );
    }

    /// The whole picture, of this size. What it shows is said to those who cannot see it.
    pub(crate) fn finish(self, width: f64, height: f64, shows: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\" aria-label=\"{}\">\n<style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"var(--page)\"/>\n{}</svg>\n",
            escaped(shows),
            self.0
        )
    }
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
