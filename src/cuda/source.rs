//! The includes of the kernels' source, embedded in the binary, and their expansion.
//!
//! Expansion is textual and part of the cache key: an include stands outside of conditional blocks, every file enters
//! once, and `#line` keeps the places of messages. No path of the file system is involved.

use super::CompileError;

/// `kernels/include/*.cuh`: (file name, text).
const HEADERS: &[(&str, &str)] = &[
    ("ahead.cuh", include_str!("../../kernels/include/ahead.cuh")),
    ("barrier.cuh", include_str!("../../kernels/include/barrier.cuh")),
    ("cached_row.cuh", include_str!("../../kernels/include/cached_row.cuh")),
    ("cluster.cuh", include_str!("../../kernels/include/cluster.cuh")),
    ("fp4_encode.cuh", include_str!("../../kernels/include/fp4_encode.cuh")),
    ("fp4_mma.cuh", include_str!("../../kernels/include/fp4_mma.cuh")),
    ("fp4_panel.cuh", include_str!("../../kernels/include/fp4_panel.cuh")),
    ("fp4_rows.cuh", include_str!("../../kernels/include/fp4_rows.cuh")),
    ("fp4_tcgen05.cuh", include_str!("../../kernels/include/fp4_tcgen05.cuh")),
    ("fp4_units.cuh", include_str!("../../kernels/include/fp4_units.cuh")),
    ("last_block.cuh", include_str!("../../kernels/include/last_block.cuh")),
    ("latent.cuh", include_str!("../../kernels/include/latent.cuh")),
    ("linear.cuh", include_str!("../../kernels/include/linear.cuh")),
    ("linear_write.cuh", include_str!("../../kernels/include/linear_write.cuh")),
    ("mla.cuh", include_str!("../../kernels/include/mla.cuh")),
    ("mla_absorb.cuh", include_str!("../../kernels/include/mla_absorb.cuh")),
    ("mla_items.cuh", include_str!("../../kernels/include/mla_items.cuh")),
    ("mla_merge.cuh", include_str!("../../kernels/include/mla_merge.cuh")),
    ("mla_pass.cuh", include_str!("../../kernels/include/mla_pass.cuh")),
    ("mla_queries.cuh", include_str!("../../kernels/include/mla_queries.cuh")),
    ("mla_slab.cuh", include_str!("../../kernels/include/mla_slab.cuh")),
    ("mma.cuh", include_str!("../../kernels/include/mma.cuh")),
    ("norm.cuh", include_str!("../../kernels/include/norm.cuh")),
    ("panel.cuh", include_str!("../../kernels/include/panel.cuh")),
    ("peer.cuh", include_str!("../../kernels/include/peer.cuh")),
    ("reduce.cuh", include_str!("../../kernels/include/reduce.cuh")),
    ("route.cuh", include_str!("../../kernels/include/route.cuh")),
    ("sampler.cuh", include_str!("../../kernels/include/sampler.cuh")),
    ("slots.cuh", include_str!("../../kernels/include/slots.cuh")),
    ("swiglu_write.cuh", include_str!("../../kernels/include/swiglu_write.cuh")),
    ("tcgen05.cuh", include_str!("../../kernels/include/tcgen05.cuh")),
    ("tcgen05_tile.cuh", include_str!("../../kernels/include/tcgen05_tile.cuh")),
    ("tile.cuh", include_str!("../../kernels/include/tile.cuh")),
    ("tile_block.cuh", include_str!("../../kernels/include/tile_block.cuh")),
    ("tile_format.cuh", include_str!("../../kernels/include/tile_format.cuh")),
    ("tile_slots.cuh", include_str!("../../kernels/include/tile_slots.cuh")),
    ("tile_split.cuh", include_str!("../../kernels/include/tile_split.cuh")),
    ("tile_steps.cuh", include_str!("../../kernels/include/tile_steps.cuh")),
    ("types.cuh", include_str!("../../kernels/include/types.cuh")),
    ("warpgroup.cuh", include_str!("../../kernels/include/warpgroup.cuh")),
    ("weight.cuh", include_str!("../../kernels/include/weight.cuh")),
    ("wgmma.cuh", include_str!("../../kernels/include/wgmma.cuh")),
    ("wgmma_tile.cuh", include_str!("../../kernels/include/wgmma_tile.cuh")),
];

/// Headers of CUDA that a kernel may include. The others take a second and more to compile: C++ standard library,
/// CUB, cooperative groups.
const CUDA_HEADERS: &[&str] = &["cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h", "cuda_fp6.h", "cuda_fp4.h"];

/// Reason why a source cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// No such header.
    #[error("{file} line {line}: there is no kernels/include/{header}")]
    UnknownHeader {
        /// Including file.
        file: String,
        /// Line of the include, from 1.
        line: usize,
        /// Name in the include.
        header: String,
    },
    /// A header that includes itself, directly or not.
    #[error("{file} line {line}: {header} includes itself")]
    Cycle {
        /// Including file.
        file: String,
        /// Line of the include, from 1.
        line: usize,
        /// Name in the include.
        header: String,
    },
    /// An include that textual expansion would read differently from a compiler.
    #[error("{file} line {line}: an include stands outside of #if and #ifdef")]
    Conditional {
        /// Including file.
        file: String,
        /// Line of the include, from 1.
        line: usize,
    },
    /// A header of CUDA that kernels do without.
    #[error("{file} line {line}: <{header}> is not one of the headers that kernels may include: {}", CUDA_HEADERS.join(", "))]
    Foreign {
        /// Including file.
        file: String,
        /// Line of the include, from 1.
        line: usize,
        /// Name in the include.
        header: String,
    },
    /// An include in a form that is not understood.
    #[error("{file} line {line}: expected #include \"header.cuh\" or #include <header.h>")]
    Malformed {
        /// Including file.
        file: String,
        /// Line of the include, from 1.
        line: usize,
    },
}

/// Expanded text of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    /// Text for the compiler.
    pub(super) text: String,
    /// Whether it includes a header of CUDA.
    pub(super) cuda_headers: bool,
}

/// The source of `kernels/<kernel>.cu`, whose text this is.
pub(super) fn expand(kernel: &str, text: &str) -> Result<Source, SourceError> {
    expand_with(kernel, text, HEADERS)
}

fn expand_with(kernel: &str, text: &str, headers: &[(&str, &str)]) -> Result<Source, SourceError> {
    let mut expansion =
        Expansion { headers, done: Vec::new(), open: Vec::new(), out: String::new(), cuda: false };
    expansion.append(&format!("{kernel}.cu"), text)?;
    Ok(Source { text: expansion.out, cuda_headers: expansion.cuda })
}

struct Expansion<'s> {
    headers: &'s [(&'s str, &'s str)],
    /// Headers that are in the text.
    done: Vec<&'s str>,
    /// Headers that are being appended, outermost first.
    open: Vec<&'s str>,
    out: String,
    cuda: bool,
}

impl Expansion<'_> {
    fn append(&mut self, file: &str, text: &str) -> Result<(), SourceError> {
        self.out.push_str(&format!("#line 1 \"{file}\"\n"));
        let mut depth = 0usize;
        for (i, line) in text.lines().enumerate() {
            let number = i + 1;
            let directive = line.trim_start().strip_prefix('#').map(str::trim_start).unwrap_or_default();
            if directive.starts_with("if") {
                depth += 1;
            } else if directive.starts_with("endif") {
                depth = depth.saturating_sub(1);
            }
            match directive.strip_prefix("include") {
                None => {
                    self.out.push_str(line);
                    self.out.push('\n');
                }
                Some(_) if depth > 0 => {
                    return Err(SourceError::Conditional { file: file.into(), line: number });
                }
                Some(rest) => self.include(file, number, rest.trim())?,
            }
        }
        Ok(())
    }

    fn include(&mut self, file: &str, line: usize, operand: &str) -> Result<(), SourceError> {
        let operand = operand.split("//").next().unwrap_or_default().trim_end();
        let within = |open, close| operand.strip_prefix(open).and_then(|rest: &str| rest.strip_suffix(close));
        let file = || file.to_owned();
        if let Some(header) = within('<', '>') {
            if !CUDA_HEADERS.contains(&header) {
                return Err(SourceError::Foreign { file: file(), line, header: header.into() });
            }
            self.cuda = true;
            self.out.push_str(&format!("#include <{header}>\n"));
            return Ok(());
        }
        let Some(header) = within('"', '"') else {
            return Err(SourceError::Malformed { file: file(), line });
        };
        let Some((name, text)) = self.headers.iter().find(|(name, _)| *name == header).copied() else {
            return Err(SourceError::UnknownHeader { file: file(), line, header: header.into() });
        };
        if self.open.contains(&name) {
            return Err(SourceError::Cycle { file: file(), line, header: header.into() });
        }
        if !self.done.contains(&name) {
            self.done.push(name);
            self.open.push(name);
            self.append(name, text)?;
            self.open.pop();
        }
        self.out.push_str(&format!("#line {} \"{}\"\n", line + 1, file()));
        Ok(())
    }
}

impl From<SourceError> for CompileError {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::kernels;

    fn check(kernel: &str, headers: &[(&str, &str)], expected: Result<&str, SourceError>) {
        let got = expand_with("k", kernel, headers).map(|source| source.text);
        assert_eq!(got, expected.map(str::to_owned), "{kernel}");
    }

    #[test]
    fn headers_enter_once_and_messages_keep_their_places() {
        let headers = [("a.cuh", "#include \"b.cuh\"\na"), ("b.cuh", "b")];
        check(
            "#include \"a.cuh\"\n# include \"b.cuh\" // again\nk\n",
            &headers,
            Ok(
                "#line 1 \"k.cu\"\n#line 1 \"a.cuh\"\n#line 1 \"b.cuh\"\nb\n#line 2 \"a.cuh\"\na\n#line 2 \"k.cu\"\n#line 3 \"k.cu\"\nk\n",
            ),
        );
        check("#include <cuda_fp8.h>\n", &[], Ok("#line 1 \"k.cu\"\n#include <cuda_fp8.h>\n"));
    }

    #[test]
    fn includes_that_cannot_be_expanded_are_named() {
        let place = |line| (String::from("k.cu"), line);
        let (file, line) = place(2);
        check(
            "\n#include \"c.cuh\"",
            &[],
            Err(SourceError::UnknownHeader { file, line, header: "c.cuh".into() }),
        );
        let cycle = [("a.cuh", "#include \"b.cuh\""), ("b.cuh", "\n\n#include \"a.cuh\"")];
        check(
            "#include \"a.cuh\"",
            &cycle,
            Err(SourceError::Cycle { file: "b.cuh".into(), line: 3, header: "a.cuh".into() }),
        );
        check(
            "#include \"a.cuh\"",
            &[("a.cuh", "#include \"a.cuh\"")],
            Err(SourceError::Cycle { file: "a.cuh".into(), line: 1, header: "a.cuh".into() }),
        );
        for text in ["#if 1\n#include \"a.cuh\"\n#endif", "#ifdef X\n  #  include <cuda_fp16.h>\n#endif"] {
            let (file, line) = place(2);
            check(text, &[("a.cuh", "")], Err(SourceError::Conditional { file, line }));
        }
        check(
            "#ifdef X\n#endif\n#include \"a.cuh\"",
            &[("a.cuh", "")],
            Ok("#line 1 \"k.cu\"\n#ifdef X\n#endif\n#line 1 \"a.cuh\"\n#line 4 \"k.cu\"\n"),
        );
        let (file, line) = place(1);
        check(
            "#include <cub/cub.cuh>",
            &[],
            Err(SourceError::Foreign { file, line, header: "cub/cub.cuh".into() }),
        );
        for text in ["#include MACRO", "#include \"a.cuh", "#include"] {
            let (file, line) = place(1);
            check(text, &[], Err(SourceError::Malformed { file, line }));
        }
    }

    #[test]
    fn every_file_of_the_folder_is_embedded_under_its_name() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
        let kernels = kernels::ALL.iter().map(|kernel| (format!("{}.cu", kernel.name), kernel.text));
        let headers = HEADERS.iter().map(|(name, text)| ((*name).to_owned(), *text));
        for (dir, extension, known) in [
            (root.clone(), "cu", kernels.collect::<Vec<_>>()),
            (root.join("include"), "cuh", headers.collect()),
        ] {
            let mut found: Vec<_> = fs::read_dir(dir)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension() == Some(extension.as_ref()))
                .collect();
            found.sort();
            assert_eq!(found.len(), known.len());
            for (path, (name, text)) in found.iter().zip(known) {
                assert_eq!(path.file_name().unwrap().to_str(), Some(&*name));
                assert!(fs::read_to_string(path).unwrap() == text, "{name} has another text");
            }
        }
    }
}
