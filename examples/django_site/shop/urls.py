"""The URLs of the site."""

from django.urls import path

from shop import views

urlpatterns = [path("order/<item>", views.order), path("click/<item>", views.click)]
