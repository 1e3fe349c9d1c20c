//! A decoder-only transformer in the form of GPT-2 (Radford et al. 2019), with the names of nanoGPT: it predicts each next
//! token from those before. With GPT-2's settings (50,257 tokens, a context of 1024, width 768, 12 heads, 12 layers) it has
//! GPT-2's 124,439,808 parameters; as it stands, for bytes, 842,496.

mod attention;
mod block;

use omnilearn_kernel_sdk::prelude::*;

use crate::attention::causal_mask;
use crate::block::Block;

settings! {
    /// Number of different tokens; 256 for bytes.
    vocabulary: u32[2..=1_000_000] = 256,
    /// Tokens of a sample, which is also how far back a prediction looks.
    tokens: u32[1..=8192] = 128,
    /// Numbers that stand for a token; a multiple of `heads`.
    width: u32[1..=16_384] = 128,
    /// Heads of attention in each layer.
    heads: u32[1..=256] = 4,
    /// Layers, each of attention and a perceptron.
    layers: u32[1..=256] = 4,
    /// Whether the head is the embedding once more, rather than a matrix of its own.
    tied: bool[..] = true,
    /// Probability of dropping an element in training: of the embedding, the attention and what each layer adds.
    dropout: f32[0.0..1.0] = 0.0,
}

/// Standard deviation of first values.
const DEVIATION: f32 = 0.02;

struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    dropout: Dropout,
    blocks: Vec<Block>,
    norm: LayerNorm,
    /// None where the embedding of tokens serves.
    head: Option<Linear>,
}

impl Kernel for Gpt {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { vocabulary, tokens, width, heads, layers, tied, dropout } = settings;
        if width % heads != 0 {
            return Err(format!("setting `width` is {width}, but must be a multiple of the {heads} heads"));
        }
        build.decay_matrices_only();
        build.input("tokens", DType::I32, &[tokens]);
        build.target("next_tokens", DType::I32, &[tokens]);
        build.metric("correct");
        let embedding = |rows| Embedding::new(rows, width).deviation(DEVIATION);
        let shape = block::Shape { width, heads, layers, dropout };
        Ok(Gpt {
            tokens: embedding(vocabulary).build(build, "transformer.wte"),
            positions: embedding(tokens).build(build, "transformer.wpe"),
            dropout: Dropout::new(dropout),
            blocks: (0..layers)
                .map(|index| build.scope(&format!("transformer.h.{index}"), |build| Block::new(build, &shape)))
                .collect(),
            norm: LayerNorm::new(build, "transformer.ln_f", width),
            head: (!tied).then(|| {
                let head = Linear::new(width, vocabulary).no_bias().initial(Initial::Normal(DEVIATION));
                head.build(build, "lm_head")
            }),
        })
    }

    fn forward(&self, inputs: Vec<Tensor>, targets: Option<Tensor>, pass: &mut Pass) -> Result<Output, String> {
        let tokens = only_input(inputs)?; // [batch, tokens]
        let x = self.tokens.forward(&tokens, pass).add(self.positions.weight(pass)); // [batch, tokens, width]
        let mut x = self.dropout.forward(x, pass);
        let mask = causal_mask(tokens.shape()[1]);
        for block in &self.blocks {
            x = block.forward(x, &mask, pass);
        }
        let x = self.norm.forward(&x, pass);
        let logits = match &self.head {
            None => self.tokens.scores(&x, pass),
            Some(head) => head.forward(&x, pass),
        }; // [batch, tokens, vocabulary]
        Output::judged(logits, targets, pass, loss::next_token)
    }
}

export_kernel!(Gpt);
