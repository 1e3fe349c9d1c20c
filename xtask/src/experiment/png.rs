//! Pictures as PNG, by whatever the machine has for it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::workspace::has_program;

/// A program that turns SVG into PNG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Converter {
    /// librsvg's.
    Rsvg,
    /// A browser of this name.
    Browser(&'static str),
}

/// What to install where there is no converter.
pub(crate) const NOTICE: &str =
    "no PNG, only SVG: install librsvg2-bin (`apt-get install librsvg2-bin`) or chromium to get both";

impl Converter {
    /// The first that is installed.
    pub(crate) fn find() -> Option<Self> {
        if has_program("rsvg-convert") {
            return Some(Self::Rsvg);
        }
        ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| has_program(name)).map(Self::Browser)
    }

    /// Converts one picture.
    ///
    /// # Errors
    /// When the program fails or writes nothing.
    pub(crate) fn convert(self, svg: &Path, png: &Path) -> anyhow::Result<()> {
        let profile = tempfile::tempdir().context("making a folder for the browser")?;
        let mut command = match self {
            Self::Rsvg => {
                let mut command = Command::new("rsvg-convert");
                command.arg("--output").arg(png).arg(svg);
                command
            }
            Self::Browser(name) => {
                let text = std::fs::read_to_string(svg).with_context(|| format!("reading {}", svg.display()))?;
                let (width, height) = size(&text).with_context(|| format!("{} has no size", svg.display()))?;
                let mut command = Command::new(name);
                command
                    .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"])
                    .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
                    .arg(format!("--user-data-dir={}", profile.path().display()))
                    .arg(format!("--window-size={width},{height}"))
                    .arg(format!("--screenshot={}", png.display()))
                    .arg(format!("file://{}", svg.display()));
                command
            }
        };
        let shown = format!("{:?}", command.get_program()).replace('"', "");
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {shown}"))?;
        if !output.status.success() || !png.is_file() {
            bail!("{shown} made no {}: {}", png.display(), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

/// Width and height of a picture in pixels.
fn size(svg: &str) -> Option<(u32, u32)> {
    let attribute = |name: &str| svg.split_once(&format!("{name}=\""))?.1.split_once('"')?.0.parse().ok();
    Some((attribute("width")?, attribute("height")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_picture_is_read() {
        assert_eq!(size("<svg width=\"460\" height=\"418\" viewBox=\"0 0 1 1\">"), Some((460, 418)));
        assert_eq!(size("<svg>"), None);
    }

    #[test]
    fn a_picture_becomes_png() {
        let Some(converter) = Converter::find() else {
            eprintln!("skipped: {NOTICE}");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let (svg, png) = (folder.path().join("a.svg"), folder.path().join("a.png"));
        std::fs::write(&svg, "<svg width=\"40\" height=\"20\" xmlns=\"http://www.w3.org/2000/svg\"></svg>").unwrap();
        converter.convert(&svg, &png).unwrap();
        assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    }
}
