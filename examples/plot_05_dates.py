"""
Dates as they stand in a file
=============================

A day of a year is a column of text, ``2013-02-17``. It is recognised as a date, and the model sees its trend, the time
of the year and the day of the week. A warning says so; here it is printed. The model predicts the fine dust in
Beijing's air from the date and the weather. It is fitted to four years and asked for the fifth.
"""

import warnings

import matplotlib.pyplot as plt
import pandas as pd

from deepbasis import DeepBasisRegressor, TableWarning, plots

table = pd.read_csv("data/beijing.csv.gz")
train, test = table[table["day"] < "2014"], table[table["day"] >= "2014"]

model = DeepBasisRegressor(method="dbk-silu", target="log", members=2, epochs=100, random_state=0)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always", TableWarning)
    model.fit(train.drop(columns="pm25"), train["pm25"])
print(*(one.message for one in told))

# %%
# The last four months, day by day. The band holds 90 % of the days, if the model is right.

autumn = test[test["day"] >= "2014-09"]
lower, upper = model.predict_interval(autumn.drop(columns="pm25"), coverage=0.9)
median = model.predict_dist(autumn.drop(columns="pm25")).median
days = pd.to_datetime(autumn["day"])

fig, ax = plt.subplots(figsize=(9, 3.8), layout="constrained")
ax.fill_between(days, lower, upper, color=plots.BLUE, alpha=0.2, lw=0, label="90 % interval")
ax.plot(days, median, color=plots.BLUE, lw=1.2, label="predicted median")
ax.plot(days, autumn["pm25"], ".", color=plots.INK, ms=4, label="measured")
months = pd.date_range("2014-09", "2015-01", freq="MS")
ax.set_xticks(months, months.strftime("%B %Y"))
ax.set(ylabel="PM2.5 in µg/m³", ylim=(0, 500))
ax.legend(frameon=False, ncols=3, loc="upper left")
plt.show()
