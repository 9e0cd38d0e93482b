"""The options of transformers.TrainingArguments and its kin, of versions 4.20 to 5: name → type.

No version has all of them, and a later one may have more: an option that is not listed may still be valid.
"""

from __future__ import annotations

_INT = (
    "per_device_train_batch_size per_device_eval_batch_size per_gpu_train_batch_size per_gpu_eval_batch_size "
    "gradient_accumulation_steps eval_accumulation_steps torch_empty_cache_steps max_steps warmup_steps "
    "save_total_limit "
    "seed data_seed local_rank tpu_num_cores dataloader_num_workers dataloader_prefetch_factor past_index "
    "neftune_noise_alpha ddp_bucket_cap_mb ddp_timeout fsdp_min_num_params hub_retry"
)
_FLOAT = (
    "learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm num_train_epochs warmup_ratio "
    "label_smoothing_factor logging_steps eval_steps save_steps eval_delay neftune_noise_alpha"
)
_BOOL = (
    "overwrite_output_dir do_train do_eval do_predict prediction_loss_only logging_first_step logging_nan_inf_filter "
    "save_safetensors save_on_each_node save_only_model restore_callback_states_from_checkpoint no_cuda use_cpu "
    "use_mps_device jit_mode_eval use_ipex bf16 fp16 bf16_full_eval fp16_full_eval tf32 tpu_metrics_debug "
    "dataloader_drop_last disable_tqdm remove_unused_columns load_best_model_at_end greater_is_better ignore_data_skip "
    "adafactor group_by_length ddp_find_unused_parameters ddp_broadcast_buffers dataloader_pin_memory "
    "dataloader_persistent_workers skip_memory_metrics use_legacy_prediction_loop push_to_hub hub_private_repo "
    "hub_always_push gradient_checkpointing include_inputs_for_metrics eval_do_concat_batches fp16_backend_amp "
    "auto_find_batch_size full_determinism torch_compile dispatch_batches split_batches include_tokens_per_second "
    "include_num_input_tokens_seen batch_eval_metrics eval_on_start use_liger_kernel eval_use_gather_object "
    "average_tokens_across_devices use_reentrant enable_jit_checkpoint"
)
_TEXT = (
    "output_dir eval_strategy evaluation_strategy lr_scheduler_type lr_scheduler_kwargs log_level log_level_replica "
    "logging_dir logging_strategy save_strategy half_precision_backend fp16_opt_level fp16_backend ddp_backend "
    "run_name metric_for_best_model fsdp_transformer_layer_cls_to_wrap fsdp_config deepspeed optim optim_args "
    "length_column_name resume_from_checkpoint hub_model_id hub_strategy hub_token hub_revision mp_parameters "
    "push_to_hub_model_id push_to_hub_organization push_to_hub_token ray_scope torchdynamo torch_compile_backend "
    "torch_compile_mode accelerator_config gradient_checkpointing_kwargs optim_target_modules sharded_ddp xpu_backend "
    "parallelism_config liger_kernel_config project trackio_space_id train_sampling_strategy"
)
_SEVERAL = "report_to label_names debug fsdp include_for_metrics"
_SEQ2SEQ = {
    "sortish_sampler": "bool",
    "predict_with_generate": "bool",
    "generation_max_length": "int",
    "generation_num_beams": "int",
    "generation_config": "str",
}

TRAINING_ARGUMENTS: dict[str, str] = {
    **dict.fromkeys(_TEXT.split(), "str"),
    **dict.fromkeys(_INT.split(), "int"),
    **dict.fromkeys(_FLOAT.split(), "float"),
    **dict.fromkeys(_BOOL.split(), "bool"),
    **dict.fromkeys(_SEVERAL.split(), "several"),
}
KNOWN_CLASSES = {
    "TrainingArguments": TRAINING_ARGUMENTS,
    "Seq2SeqTrainingArguments": {**TRAINING_ARGUMENTS, **_SEQ2SEQ},
}
