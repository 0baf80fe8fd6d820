"""Random tiny sequence classifiers of eight architectures, each with a tokenizer made offline, for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "a good movie and a bad movie, how are you today?",
    "batch inference on transformers with planned sequence lengths",
    "what is the capital of france? paris.",
] * 20

MAX_LENGTH = 128
HIDDEN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def make_model(
    directory: Path, architecture: str = "bert", *, labels: int = 3, problem_type: str | None = None, seed: int = 0
) -> Path:
    """Write a model of that architecture (see ARCHITECTURES) with `labels` outputs; returns the directory."""
    import torch

    torch.manual_seed(seed)
    tokenizer = _tokenizer(architecture)
    names = {index: f"label-{index}" for index in range(labels)}
    options: dict[str, Any] = {"num_labels": labels, "id2label": names, "label2id": {v: k for k, v in names.items()}}
    if problem_type:
        options["problem_type"] = problem_type
    options |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    model = {**ARCHITECTURES, **RARER}[architecture](options)
    with torch.no_grad():
        # The default spread of 0.02 gives nearly constant logits, which would hide padding and ordering bugs.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
        for module in model.modules() if architecture in RARER else ():
            # Zero in trained models; MobileBERT rests on it.
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
    model.eval().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    config_path = directory / "tokenizer_config.json"
    config = json.loads(config_path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config_path.write_text(json.dumps(config, indent=1))
    return directory


def _bert(options: dict[str, Any]) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**HIDDEN, max_position_embeddings=MAX_LENGTH, **options))


def _distilbert(options: dict[str, Any]) -> Any:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    sizes = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}
    config = DistilBertConfig(**sizes, max_position_embeddings=MAX_LENGTH, **options)
    return DistilBertForSequenceClassification(config)


def _roberta(options: dict[str, Any]) -> Any:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(**HIDDEN, max_position_embeddings=MAX_LENGTH + 2, type_vocab_size=1, **options)
    return RobertaForSequenceClassification(config)


def _xlm_roberta(options: dict[str, Any]) -> Any:
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    config = XLMRobertaConfig(**HIDDEN, max_position_embeddings=MAX_LENGTH + 2, type_vocab_size=1, **options)
    return XLMRobertaForSequenceClassification(config)


def _electra(options: dict[str, Any]) -> Any:
    from transformers import ElectraConfig, ElectraForSequenceClassification

    config = ElectraConfig(**HIDDEN, embedding_size=16, max_position_embeddings=MAX_LENGTH, **options)
    return ElectraForSequenceClassification(config)


def _deberta(options: dict[str, Any]) -> Any:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        **HIDDEN,
        max_position_embeddings=MAX_LENGTH,
        relative_attention=True,
        position_buckets=32,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
        **options,
    )
    return DebertaV2ForSequenceClassification(config)


def _mpnet(options: dict[str, Any]) -> Any:
    from transformers import MPNetConfig, MPNetForSequenceClassification

    return MPNetForSequenceClassification(MPNetConfig(**HIDDEN, max_position_embeddings=MAX_LENGTH + 2, **options))


def _modernbert(options: dict[str, Any]) -> Any:
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    special = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    # Local attention over 16 tokens, so that rows longer than that exercise both kinds of layers.
    config = ModernBertConfig(
        **HIDDEN,
        max_position_embeddings=MAX_LENGTH,
        local_attention=16,
        global_attn_every_n_layers=2,
        reference_compile=False,
        **special,
        **options,
    )
    return ModernBertForSequenceClassification(config)


ARCHITECTURES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "bert": _bert,
    "distilbert": _distilbert,
    "roberta": _roberta,
    "xlm-roberta": _xlm_roberta,
    "electra": _electra,
    "deberta-v2": _deberta,
    "mpnet": _mpnet,
    "modernbert": _modernbert,
}
"""Name -> model of a config that also takes the given options."""


def _smallest(model_type: str, **sizes: Any) -> Callable[[dict[str, Any]], Any]:
    def build(options: dict[str, Any]) -> Any:
        from transformers import AutoConfig, AutoModelForSequenceClassification

        config = AutoConfig.for_model(
            model_type, **{**HIDDEN, "max_position_embeddings": MAX_LENGTH, **sizes, **options}
        )
        return AutoModelForSequenceClassification.from_config(config)

    return build


_XLM = {"emb_dim": 32, "n_layers": 2, "n_heads": 4}
RARER: dict[str, Callable[[dict[str, Any]], Any]] = {
    "albert": _smallest("albert", embedding_size=16),
    "camembert": _smallest("camembert", max_position_embeddings=MAX_LENGTH + 2, type_vocab_size=1),
    "convbert": _smallest("convbert", embedding_size=16, conv_kernel_size=3),
    "deberta": _smallest("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False),
    "esm": _smallest("esm", position_embedding_type="rotary", token_dropout=False, emb_layer_norm_before=False),
    "flaubert": _smallest("flaubert", **_XLM),
    "mobilebert": _smallest("mobilebert", embedding_size=32, intra_bottleneck_size=32, num_feedforward_networks=1),
    "phi": _smallest("phi"),
    "roformer": _smallest("roformer", embedding_size=32),
    "xlm": _smallest("xlm", **_XLM),
}
"""Those that optimum-neuron exports beside ARCHITECTURES."""

SPECIAL_BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SPECIAL_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def _tokenizer(architecture: str) -> Any:
    if architecture in {"roberta", "xlm-roberta", "mpnet"}:
        return _roberta_tokenizer()
    return _bert_tokenizer(token_types=architecture in {"bert", "electra"})


def _bert_tokenizer(*, token_types: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordPiece(_word_pieces(), unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ["input_ids", *(["token_type_ids"] if token_types else []), "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=MAX_LENGTH,
        model_input_names=names,
    )


def _word_pieces() -> dict[str, int]:
    """The vocabulary: special tokens, the corpus's characters (first and later in a word), its words.

    Not trained: `WordPieceTrainer` breaks ties by hash order, so that every process would have another vocabulary,
    now and then of another size, and tests another model in every run.
    """
    words = sorted(set(re.findall(r"\w+|[^\w\s]", " ".join(CORPUS))))
    letters = sorted(set("".join(words)))
    pieces = [*SPECIAL_BERT, *letters, *(f"##{letter}" for letter in letters if letter.isalpha()), *words]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


def _roberta_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL_ROBERTA, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    core.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=MAX_LENGTH,
        model_input_names=["input_ids", "attention_mask"],
    )
