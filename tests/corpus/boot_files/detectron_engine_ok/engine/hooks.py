import time


class HookBase:
    trainer = None

    def after_step(self):
        pass


class IterationTimer(HookBase):
    def __init__(self):
        self.start = time.perf_counter()

    def after_step(self):
        self.trainer.seconds = time.perf_counter() - self.start


class LRScheduler(HookBase):
    def __init__(self, optimizer, max_iter):
        self.optimizer, self.max_iter = optimizer, max_iter
        self.base = [group["lr"] for group in optimizer.param_groups]

    def after_step(self):
        for group, base in zip(self.optimizer.param_groups, self.base):
            group["lr"] = base * (1 - self.trainer.iter / self.max_iter)


class EvalHook(HookBase):
    def __init__(self, period, func):
        self.period, self.func = period, func

    def after_step(self):
        if self.period > 0 and (self.trainer.iter + 1) % self.period == 0:
            self.func()
