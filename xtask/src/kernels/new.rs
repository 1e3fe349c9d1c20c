//! Begins a kernel: a crate that builds and trains as it stands.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use toml::Spanned;

use super::COMPONENTS;

const MANIFEST: &str = include_str!("template/manifest.toml");
const SOURCE: &str = include_str!("template/lib.rs");
const NAME_LENGTH_MAX: usize = 64;

/// Names of libraries that a crate cannot have: the language's words, the crates that every kernel sees, and Cargo's folder.
const RESERVED: [&str; 53] = [
    "abstract", "alloc", "as", "async", "await", "become", "box", "break", "const", "continue", "core", "crate", "do",
    "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro",
    "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static", "std", "struct",
    "super", "target", "test", "trait", "true", "try", "type", "typeof", "unsafe", "use", "where", "yield",
];

/// Makes the crate `KERNELS/NAME` and adds it to the members of `KERNELS/Cargo.toml`, or leaves both as they are.
///
/// # Errors
/// A name that no crate can have, or that is taken; a manifest that cannot be read or edited.
pub(super) fn create(kernels: &Path, name: &str) -> Result<()> {
    check_name(name)?;
    let path = kernels.join("Cargo.toml");
    let manifest = fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
    check_free(kernels, name)?;
    let edited = with_member(&manifest, name).with_context(|| format!("could not edit {}", path.display()))?;
    let folder = kernels.join(name);
    let made = write_crate(&folder, name)
        .and_then(|()| fs::write(&path, edited).with_context(|| format!("could not write {}", path.display())));
    if made.is_err() {
        // Half a crate would only be in the way of the next attempt, which is what the error is for.
        let _ = fs::remove_dir_all(&folder);
    }
    made
}

/// What to do with a new crate.
pub(super) fn next_steps(name: &str) -> String {
    let component = format!("{COMPONENTS}/{}.wasm", library(name));
    format!(
        "made kernels/{name}: a perceptron to start from, in kernels/{name}/src/lib.rs\n\n\
         build it:            cargo xtask kernels\n\
         check it:            omnilearn-agent kernel check {component}\n\
         train it, in a job:  kernel.path = \"{component}\"\n\n\
         docs/kernels.md goes on from here"
    )
}

fn write_crate(folder: &Path, name: &str) -> Result<()> {
    let write = |file: &str, contents: &str| {
        let path = folder.join(file);
        fs::write(&path, contents).with_context(|| format!("could not write {}", path.display()))
    };
    let source = folder.join("src");
    fs::create_dir_all(&source).with_context(|| format!("could not create {}", source.display()))?;
    write("Cargo.toml", &MANIFEST.replace("__crate__", name).replace("__library__", &library(name)))?;
    write("src/lib.rs", SOURCE)
}

/// A crate's name as its library and its component have it.
fn library(name: &str) -> String {
    name.replace('-', "_")
}

fn check_name(name: &str) -> Result<()> {
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    let rest = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !first || !rest || name.ends_with('-') || name.contains("--") || name.len() > NAME_LENGTH_MAX {
        bail!(
            "`{}` cannot name a kernel: a name begins with a small letter and has small letters, digits and single `-` \
             between them, at most {NAME_LENGTH_MAX} in all, such as `tiny-net`",
            name.escape_debug()
        );
    }
    if RESERVED.contains(&name) || library(name) == "omnilearn_kernel_sdk" {
        bail!("`{name}` cannot name a kernel: in Rust it means something else");
    }
    Ok(())
}

/// Refuses the name of another kernel, in Rust or in C, and of a folder. Kernels whose names differ in `-` and `_` would have
/// the same component.
fn check_free(kernels: &Path, name: &str) -> Result<()> {
    for folder in [kernels.to_owned(), kernels.join("c")] {
        let entries = fs::read_dir(&folder).with_context(|| format!("could not read {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            let taken = path.file_stem().is_some_and(|stem| library(&stem.to_string_lossy()) == library(name));
            if taken {
                bail!("the name `{name}` is taken by {}", path.display());
            }
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Manifest {
    workspace: WorkspaceTable,
}

#[derive(Deserialize)]
struct WorkspaceTable {
    members: Spanned<Vec<Spanned<String>>>,
}

fn members(manifest: &str) -> Result<Spanned<Vec<Spanned<String>>>> {
    let manifest: Manifest = toml::from_str(manifest).context("it has no list of members")?;
    Ok(manifest.workspace.members)
}

/// Adds a member after the last one, in a line of its own where the list ends on a line of its own. All else stays as it is.
fn with_member(manifest: &str, name: &str) -> Result<String> {
    let listed = members(manifest)?;
    let last = listed.get_ref().last().context("its list of members is empty")?.span();
    let (before, after) = manifest.split_at(last.end);
    // What follows the last member up to the end of its line: perhaps a comma, perhaps a comment.
    let rest_of_line = after.split('\n').next().unwrap_or_default();
    let edited = if last.end + rest_of_line.len() < listed.span().end {
        let line = before.rfind('\n').map_or(0, |end| end + 1);
        let indent: String = before[line..].chars().take_while(|character| character.is_whitespace()).collect();
        let comma = if rest_of_line.trim_start().starts_with(',') { "" } else { "," };
        let below = &after[rest_of_line.len()..];
        format!("{before}{comma}{rest_of_line}\n{indent}\"{name}\",{below}")
    } else {
        format!("{before}, \"{name}\"{after}")
    };
    let added = members(&edited)?;
    let names = |members: &Spanned<Vec<Spanned<String>>>| -> Vec<String> {
        members.get_ref().iter().map(|member| member.get_ref().clone()).collect()
    };
    if names(&added) != [names(&listed), vec![name.to_owned()]].concat() {
        bail!("its list of members has a form that this tool does not know: add \"{name}\" by hand");
    }
    Ok(edited)
}

#[cfg(test)]
mod tests {
    use super::super::{rust, target, wrap};
    use super::*;

    #[test]
    fn names_are_those_that_a_crate_can_have() {
        for name in ["net", "tiny-net", "net2", "a", &"x".repeat(64)] {
            check_name(name).unwrap();
        }
        let long = "x".repeat(65);
        for name in
            ["", "2net", "-net", "net-", "a--b", "Net", "my_net", "my net", "../net", "nét", "n.t", "a\nb", &long]
        {
            let message = check_name(name).unwrap_err().to_string();
            assert!(message.contains("cannot name a kernel: a name begins with a small letter"), "{message}");
        }
        for name in ["fn", "self", "core", "std", "test", "target", "omnilearn-kernel-sdk"] {
            let message = check_name(name).unwrap_err().to_string();
            assert_eq!(message, format!("`{name}` cannot name a kernel: in Rust it means something else"));
        }
    }

    #[test]
    fn a_name_that_is_taken_is_refused_and_nothing_changes() {
        let folder = tempfile::tempdir().unwrap();
        for taken in ["sdk", "linear-regression", "my_net", "c"] {
            fs::create_dir(folder.path().join(taken)).unwrap();
        }
        fs::write(folder.path().join("c/perceptron.c"), "").unwrap();
        let manifest = folder.path().join("Cargo.toml");
        fs::write(&manifest, "[workspace]\nmembers = [\"sdk\"]\n").unwrap();
        for name in ["sdk", "linear-regression", "my-net", "c", "perceptron"] {
            let message = create(folder.path(), name).unwrap_err().to_string();
            assert!(message.starts_with(&format!("the name `{name}` is taken by ")), "{message}");
        }
        assert_eq!(fs::read_to_string(manifest).unwrap(), "[workspace]\nmembers = [\"sdk\"]\n");
    }

    #[test]
    fn a_crate_that_cannot_be_made_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("c")).unwrap();
        fs::write(folder.path().join("Cargo.toml"), "[workspace]\nmembers = []\n").unwrap();
        let error = create(folder.path(), "tiny-net").unwrap_err();
        assert!(format!("{error:#}").ends_with("its list of members is empty"), "{error:#}");
        assert!(!folder.path().join("tiny-net").exists());
    }

    #[test]
    fn a_member_is_added_in_the_form_that_the_list_has() {
        let cases = [
            ("members = [\"sdk\", \"mlp\"]", "members = [\"sdk\", \"mlp\", \"net\"]"),
            ("members = [\"sdk\"] # [all]", "members = [\"sdk\", \"net\"] # [all]"),
            ("members = [\n    \"sdk\",\n    \"mlp\",\n]", "members = [\n    \"sdk\",\n    \"mlp\",\n    \"net\",\n]"),
            (
                "members = [\n  \"sdk\",\n  \"mlp\" # \"x\", y\n]",
                "members = [\n  \"sdk\",\n  \"mlp\", # \"x\", y\n  \"net\",\n]",
            ),
            ("members = [\"sdk\",\n\t\"mlp\"]", "members = [\"sdk\",\n\t\"mlp\", \"net\"]"),
            (
                "members = [\n    \"sdk\", \"mlp\",\n    # more\n]",
                "members = [\n    \"sdk\", \"mlp\",\n    \"net\",\n    # more\n]",
            ),
        ];
        for (members, expected) in cases {
            let around =
                |members: &str| format!("# Kernels\n[workspace]\n{members}\nexclude = [\"host\"]\n\n[profile.x]\n");
            assert_eq!(with_member(&around(members), "net").unwrap(), around(expected));
        }
    }

    #[test]
    fn a_new_kernel_builds_as_it_stands_and_as_the_guide_changes_it() {
        let Some(cargo) = rust::present().unwrap() else {
            println!("skipped: no Rust that builds for WebAssembly is installed");
            return;
        };
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        // Shares what the true kernels need built, such as the standard library; and always in the same folder, so that
        // each run replaces what the one before left among it.
        let target = target(workspace);
        let copy = target.join("begun");
        fs::create_dir_all(&target).unwrap();
        let alone = fs::File::create(target.join("begun.lock")).unwrap();
        alone.lock().unwrap();
        if copy.exists() {
            fs::remove_dir_all(&copy).unwrap();
        }
        let kernels = copy.join("kernels");
        fs::create_dir(&copy).unwrap();
        copy_tree(&workspace.join("wit"), &copy.join("wit"), &[]);
        copy_tree(&workspace.join("kernels"), &kernels, &["target", "host"]);

        create(&kernels, "begun-net").unwrap();
        let package = Some("omnilearn-kernel-begun-net");
        let modules = rust::modules(cargo, &kernels, &target, package).unwrap();
        let component = wrap(&modules[0], &copy).unwrap();
        assert!(component.ends_with("begun_net.wasm"));
        assert!(next_steps("begun-net").contains("kernels/target/components/begun_net.wasm"));

        let guide = fs::read_to_string(workspace.join("docs/kernels.md")).unwrap();
        let example = guide.split("```").find_map(|block| block.strip_prefix("rust\n")).unwrap();
        fs::write(kernels.join("begun-net/src/lib.rs"), example).unwrap();
        let modules = rust::modules(rust::present().unwrap().unwrap(), &kernels, &target, package).unwrap();
        wrap(&modules[0], &copy).unwrap();
    }

    fn copy_tree(from: &Path, to: &Path, left_out: &[&str]) {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            if left_out.iter().any(|left_out| name == *left_out) {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                copy_tree(&entry.path(), &to.join(name), &[]);
            } else {
                fs::copy(entry.path(), to.join(name)).unwrap();
            }
        }
    }
}
